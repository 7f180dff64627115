// The page's connection to the worker of a model: calls that return promises.

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

interface Pending {
  readonly resolve: (value: never) => void;
  readonly reject: (error: Error) => void;
}

/** Starts a worker at the first call, and another one after a worker that ended. */
export function connect(start: () => Port): Client {
  const pending = new Map<number, Pending>();
  let port: Port | undefined;
  let lastId = 0;

  function open(): Port {
    const opened = start();
    opened.onmessage = ({ data: reply }) => {
      const call = pending.get(reply.id);
      pending.delete(reply.id);
      if ('failure' in reply) call?.reject(new Error(reply.failure));
      else call?.resolve(reply.value as never);
    };
    opened.onerror = ({ message }) => {
      opened.terminate();
      port = undefined;
      for (const { reject } of pending.values()) reject(new Error(message || 'The worker ended.'));
      pending.clear();
    };
    return opened;
  }

  return {
    call: (name, ...values) =>
      new Promise((resolve, reject) => {
        port ??= open();
        lastId += 1;
        pending.set(lastId, { resolve, reject });
        port.postMessage({ id: lastId, name, values });
      }),
  };
}
