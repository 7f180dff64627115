// Gives tests access to the threads that pools start in Node, to end them from outside.

import { createRequire } from 'node:module';
import type { Worker } from 'node:worker_threads';

const threads = createRequire(import.meta.url)('node:worker_threads') as { Worker: typeof Worker };

/** Running threads. The Worker class is replaced to record them, because a pool gives no access to its threads. */
export const running = new Set<Worker>();

const Original = threads.Worker;
/** Set to make every new thread fail. */
export const sabotage: { script: string | undefined; refuse: Error | undefined; unreadable: boolean } = {
  ...{ script: undefined, refuse: undefined },
  /** Adds a detached array to every message to a thread. Node 20 sends it, but the thread cannot read it. */
  unreadable: false,
};

threads.Worker = class extends Original {
  constructor(url: URL, options: object) {
    if (sabotage.refuse !== undefined) throw sabotage.refuse;
    super(sabotage.script === undefined ? url : new URL(sabotage.script, url), options);
    running.add(this);
    this.on('exit', () => running.delete(this));
  }

  override postMessage(message: unknown, transfer: readonly ArrayBuffer[] = []): void {
    if (!sabotage.unreadable) return super.postMessage(message, transfer);
    const array = new Float32Array(4);
    const { buffer } = array;
    structuredClone(buffer, { transfer: [buffer] });
    super.postMessage({ message, array }, [buffer]);
  }
} as typeof Worker;

export async function until(condition: () => boolean): Promise<void> {
  for (let wait = 0; wait < 500 && !condition(); wait += 1) await new Promise((resolve) => setTimeout(resolve, 10));
  if (!condition()) throw new Error('not within five seconds');
}

/** Returns the thread of the only worker. Threads of disposed pools may still be ending. */
export async function onlyThread(): Promise<Worker | undefined> {
  await until(() => running.size === 1);
  return [...running][0];
}
