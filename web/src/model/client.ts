// The page's connection to the worker of a model: calls that return promises.

import { WorkerCalls } from '../workers/worker_calls.js';
import { whenEnded } from '../workers/worker_life.js';
import type { CallName, Calls, Reply, Request } from './messages.js';

export interface Port {
  postMessage(request: Request): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<Reply>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

export interface Client {
  call<N extends CallName>(name: N, ...values: Parameters<Calls[N]>): Promise<ReturnType<Calls[N]>>;
  /** Calls `listener` when the worker has ended. The model is lost, and all pending calls are rejected. */
  onLost(listener: () => void): void;
}

/** Starts a worker at the first call, and a new one if the worker has ended. */
export function connect(start: () => Port): Client {
  const calls = new WorkerCalls();
  let port: Port | undefined;
  let tell = (): void => {};

  function open(): Port {
    const opened = start();
    const lose = (reason: string): void => {
      if (port !== opened) return;
      opened.terminate();
      port = undefined;
      tell();
      calls.rejectAll(reason);
    };
    opened.onmessage = ({ data: reply }) => {
      if ('lock' in reply) whenEnded(reply.lock, () => lose('its worker has ended, perhaps for lack of memory.'));
      else if ('failure' in reply) calls.reject(reply.id, reply.failure);
      else calls.resolve(reply.id, reply.value);
    };
    opened.onerror = ({ message }) => lose(message || 'its worker script could not be loaded.');
    return opened;
  }

  return {
    onLost: (listener) => {
      tell = listener;
    },
    call: (name, ...values) =>
      calls.start((id) => {
        port ??= open();
        port.postMessage({ id, name, values });
      }),
  };
}
