// One worker of a pool, in browsers, Node, or on the calling thread.

import { load } from './load.js';
import type { Reply, Request } from './pool_protocol.js';
import { sentError, TaskRunner } from './pool_tasks.js';

/** What happens to a worker. */
export interface PortEvents {
  reply(reply: Reply): void;
  /** The worker has ended, or never began. Called at most once, and not after end(). */
  death(why: string): void;
}

/** A worker that can be sent requests. */
export interface Port {
  send(request: Request, transfer: ArrayBuffer[]): void;
  end(): void;
  /** Whether the worker keeps the process alive; Node only. */
  hold(busy: boolean): void;
}

interface BrowserWorker {
  onmessage: ((event: { data: Reply }) => void) | null;
  onerror: ((event: { message?: string; preventDefault?(): void }) => void) | null;
  onmessageerror: (() => void) | null;
  postMessage(message: Request, transfer: ArrayBuffer[]): void;
  terminate(): void;
}
// With the global's own type, the package would need TypeScript's DOM library.
declare const Worker: new (url: URL, options: { type: 'module' }) => BrowserWorker;

interface NodeWorker {
  on(event: 'message', listener: (reply: Reply) => void): void;
  on(event: 'error' | 'messageerror', listener: (error: Error) => void): void;
  on(event: 'exit', listener: (code: number) => void): void;
  postMessage(message: Request, transfer: ArrayBuffer[]): void;
  terminate(): Promise<number>;
  ref(): void;
  unref(): void;
}
interface NodeProcess {
  getBuiltinModule?(name: 'node:worker_threads'): { Worker: new (url: URL, options: object) => NodeWorker };
  getBuiltinModule?(name: 'node:os'): { availableParallelism?(): number };
}

// Not imported, so that bundlers need not resolve Node's modules.
const builtin = (globalThis as { process?: NodeProcess }).process?.getBuiltinModule;

/** How many threads the machine runs side by side; 1 if it does not say. */
export function cores(): number {
  const { navigator } = globalThis as { navigator?: { hardwareConcurrency?: unknown } };
  const told = navigator?.hardwareConcurrency ?? builtin?.('node:os').availableParallelism?.();
  return Number.isInteger(told) && (told as number) > 0 ? (told as number) : 1;
}

/** Starts a worker; undefined where there are none. Throws what the environment throws. */
export function startWorker(events: PortEvents): Port | undefined {
  if (typeof Worker === 'function') return browserPort(events);
  const threads = builtin?.('node:worker_threads');
  return threads === undefined ? undefined : nodePort(threads.Worker, events);
}

function browserPort({ reply, death }: PortEvents): Port {
  // Written out, because bundlers look for exactly this.
  const worker = new Worker(new URL('./pool_worker.js', import.meta.url), { type: 'module' });
  const end = (): void => {
    worker.onmessage = worker.onerror = worker.onmessageerror = null;
    worker.terminate();
  };
  const died = (why: string): void => {
    end();
    death(why);
  };
  worker.onmessage = ({ data }) => reply(data);
  worker.onerror = (event) => {
    event.preventDefault?.();
    // A script that is missing, or that a Content-Security-Policy forbids, gives no message.
    died(event.message || 'its script did not load: it is missing, or the Content-Security-Policy forbids workers');
  };
  worker.onmessageerror = () => died('a message could not be read');
  return {
    send: (request, transfer) => worker.postMessage(request, transfer),
    end,
    hold: () => {},
  };
}

function nodePort(Thread: new (url: URL, options: object) => NodeWorker, { reply, death }: PortEvents): Port {
  // Not a literal, or bundlers would copy the script as an asset.
  const script = './pool_worker.js';
  const worker = new Thread(new URL(script, import.meta.url), {});
  let ended = false;
  const died = (why: string): void => {
    if (ended) return;
    ended = true;
    void worker.terminate();
    death(why);
  };
  worker.on('message', (message) => {
    if (!ended) reply(message);
  });
  worker.on('error', (error) => died(String(error)));
  worker.on('messageerror', (error) => died(String(error)));
  worker.on('exit', (code) => died(`it ended with code ${code}`));
  return {
    send: (request, transfer) => worker.postMessage(request, transfer),
    end: () => {
      ended = true;
      void worker.terminate();
    },
    hold: (busy) => (busy ? worker.ref() : worker.unref()),
  };
}

/** The calling thread in place of a worker. Each task waits for a turn of the event loop. */
export function localPort({ reply, death }: PortEvents): Port {
  let runner: TaskRunner | undefined;
  let ended = false;
  const handle = async (request: Request): Promise<void> => {
    if (ended) return;
    if (request.kind === 'start') {
      try {
        runner = new TaskRunner(await load({ wasm: request.module, simd: request.simd }));
        reply({ kind: 'ready' });
      } catch (error) {
        reply({ kind: 'broken', error: sentError(error) });
      }
    } else if (request.kind === 'release') {
      runner?.release(request.object);
    } else {
      const { message } = (runner as TaskRunner).run(request.task, request.team);
      reply(message);
    }
  };
  return {
    send: (request) => {
      setTimeout(() => handle(request).catch((error: unknown) => death(String(error))), 0);
    },
    end: () => {
      ended = true;
      runner?.end();
    },
    hold: () => {},
  };
}
