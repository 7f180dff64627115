// The page's side of a worker: calls that return promises, events, and notice of the worker's end.

import type { Call, Functions, Message } from './protocol.js';

/** The part of Worker that is used. */
export interface Port {
  postMessage(call: Call): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<Message>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

export interface Listener<Event> {
  onEvent?(event: Event): void;
  /** Called once if the worker has ended (`ended`), or if its script is missing or threw. All pending calls are rejected. */
  onLost(reason: string, ended: boolean): void;
}

export interface Remote<F extends Functions<F>> {
  call<N extends keyof F & string>(name: N, ...values: Parameters<F[N]>): Promise<ReturnType<F[N]>>;
  /** Resolves when the worker has handled this message. */
  ping(): Promise<void>;
  /** Ends the worker, and rejects all pending and later calls. */
  close(reason: string): void;
}

interface Pending {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

export function connect<F extends Functions<F>, Event = never>(port: Port, { onEvent, onLost }: Listener<Event>): Remote<F> {
  const pending = new Map<number, Pending>();
  let lastId = 0;
  let closed: string | undefined;

  function close(reason: string): void {
    closed ??= reason;
    port.terminate();
    for (const { reject } of pending.values()) reject(new Error(reason));
    pending.clear();
  }

  function lose(reason: string, ended: boolean): void {
    if (closed !== undefined) return;
    close(reason);
    onLost(reason, ended);
  }

  function settle(message: Extract<Message, { id: number }>): void {
    const call = pending.get(message.id);
    pending.delete(message.id);
    if ('failure' in message) call?.reject(Object.assign(new Error(message.failure), { argument: message.argument }));
    else call?.resolve(message.value);
  }

  function send(name: string, values: readonly unknown[]): Promise<unknown> {
    if (closed !== undefined) return Promise.reject(new Error(closed));
    return new Promise((resolve, reject) => {
      lastId += 1;
      pending.set(lastId, { resolve, reject });
      port.postMessage({ id: lastId, name, values });
    });
  }

  port.onmessage = ({ data }) => {
    if ('lock' in data) whenFree(data.lock, () => lose('its worker has ended, perhaps for lack of memory.', true));
    else if ('event' in data) onEvent?.(data.event as Event);
    else settle(data);
  };
  port.onerror = ({ message }) => lose(message || 'its worker script could not be loaded.', false);
  return {
    call: (name, ...values) => send(name, values) as ReturnType<Remote<F>['call']>,
    ping: async () => void (await send('ping', [])),
    close,
  };
}

/** Calls `then` once the worker that holds a lock has ended. Pages over plain HTTP have no locks: there it is never called. */
function whenFree(lock: string, then: () => void): void {
  (navigator.locks as LockManager | undefined)?.request(lock, then).catch(() => {});
}
