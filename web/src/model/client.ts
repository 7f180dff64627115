// The page's connection to the worker of a model: calls that return promises.

import { WorkerCalls } from '../worker_calls.js';
import type { CallName, Calls, Reply, Request } from './messages.js';

export interface Port {
  postMessage(request: Request): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<Reply>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

export interface Client {
  call<N extends CallName>(name: N, ...values: Parameters<Calls[N]>): Promise<ReturnType<Calls[N]>>;
}

/** Starts a worker at the first call, and another one after a worker that ended. */
export function connect(start: () => Port): Client {
  const calls = new WorkerCalls();
  let port: Port | undefined;

  function open(): Port {
    const opened = start();
    opened.onmessage = ({ data: reply }) => {
      if ('failure' in reply) calls.reject(reply.id, reply.failure);
      else calls.resolve(reply.id, reply.value);
    };
    opened.onerror = ({ message }) => {
      opened.terminate();
      port = undefined;
      calls.rejectAll(message || 'The worker ended.');
    };
    return opened;
  }

  return {
    call: (name, ...values) =>
      calls.start((id) => {
        port ??= open();
        port.postMessage({ id, name, values });
      }),
  };
}
