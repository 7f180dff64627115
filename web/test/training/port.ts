// A training worker in this thread, for tests.

import type { Multihead } from 'multihead';
import { Run } from '../../src/training/run.js';
import type { Message } from '../../src/workers/protocol.js';
import type { Port } from '../../src/workers/remote.js';

/**
 * A worker in this thread. kill() reports an error on its port; after terminate() it no longer answers. Messages arrive
 * `delay` milliseconds after they were sent. Adds its run to `runs`.
 */
export function portOf(mh: Multihead, runs: Run[], delay = 0): Port & { kill(): void } {
  let ended = false;
  const port: Port & { kill(): void } = {
    onmessage: null,
    onerror: null,
    terminate: () => (ended = true),
    kill: () => port.onerror?.({ message: 'killed' } as ErrorEvent),
    postMessage({ id, name, values }) {
      if (name === 'ping') return queueMicrotask(() => reply({ id, value: undefined }));
      const method = run[name as keyof Run] as (...given: readonly unknown[]) => unknown;
      new Promise((resolve) => resolve(method.apply(run, [...values]))).then(
        (value) => reply({ id, value }),
        (error: Error) => reply({ id, failure: error }),
      );
    },
  };
  const deliver = (data: Message) => !ended && port.onmessage?.({ data } as MessageEvent<Message>);
  const reply = (data: Message) => (delay > 0 ? setTimeout(deliver, delay, data) : deliver(data));
  const run = new Run(mh, (progress) => reply({ event: progress }));
  runs.push(run);
  return port;
}
