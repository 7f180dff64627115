// The page's side of a worker: calls that return promises, events, and notice of the worker's end.

import { lacksFile, whyMissing } from './missing_file.js';
import { ignore, type Call, type Failure, type Functions, type Message } from './protocol.js';
import { watchSilence } from './silence.js';

export interface Port {
  postMessage(call: Call): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<Message>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

export interface Listener<Event> {
  onEvent?(event: Event): void;
  /** Called once if the worker has ended (`ended`), or if its script is missing or threw. All pending calls are rejected with `why`. */
  onLost(why: Failure, ended: boolean): void;
  /**
   * For a worker that starts workers of its own during a call, `during`. Firefox 153 does not return from 1 of 50 `new Worker()` in a worker.
   * The page then takes a new worker from start(), and repeats the calls that wait.
   */
  readonly nested?: { readonly during: string; start(): Port };
}

/** Seconds without an event or an answer to ping() after which a worker counts as hung. */
const longestSilence = 10;
/** Workers that are started for one connection; the last one is waited for however long it takes. */
const mostAttempts = 5;

export interface Remote<F extends Functions<F>> {
  call<N extends keyof F & string>(name: N, ...values: Parameters<F[N]>): Promise<ReturnType<F[N]>>;
  /** Resolves when the worker has handled this message. */
  ping(): Promise<void>;
  /** Ends the worker, and rejects all pending and later calls. */
  close(reason: string): void;
}

interface Pending {
  readonly call: Call;
  resolve(value: unknown): void;
  reject(error: Error): void;
}

export function connect<F extends Functions<F>, Event = never>(first: Port, { onEvent, onLost, nested }: Listener<Event>): Remote<F> {
  const pending = new Map<number, Pending>();
  let lastId = 0;
  let closed: Failure | undefined;
  let port: Port;
  /** True once this worker has said anything: before, it may be loading. */
  let spoke = false;
  /** The call in which the worker starts others, until something comes of it. */
  let watched: number | undefined;
  let attempts = 1;
  const silence = watchSilence(
    () => longestSilence,
    () => (spoke && attempts < mostAttempts ? startAgain() : silence.begin()),
    () => void send('ping', []).then(() => watched !== undefined && silence.begin(), ignore),
  );

  function startAgain(): void {
    attempts += 1;
    port.terminate();
    listen(nested!.start());
    for (const { call } of pending.values()) port.postMessage(call);
    silence.begin();
  }

  function unwatch(): void {
    watched = undefined;
    silence.end();
  }

  function close(why: Failure): void {
    closed ??= why;
    unwatch();
    port.terminate();
    for (const { reject } of pending.values()) reject(errorOf(why));
    pending.clear();
  }

  function lose(why: Failure, ended: boolean): void {
    if (closed) return;
    close(why);
    onLost(why, ended);
  }

  async function settle(message: Extract<Message, { id: number }>): Promise<void> {
    const call = pending.get(message.id);
    pending.delete(message.id);
    if (message.id === watched) unwatch();
    if ('value' in message) return call?.resolve(message.value);
    const { failure } = message;
    call?.reject(errorOf(lacksFile(failure) ? { ...failure, message: await whyMissing() } : failure));
  }

  function send(name: string, values: readonly unknown[]): Promise<unknown> {
    if (closed) return Promise.reject(errorOf(closed));
    return new Promise((resolve, reject) => {
      lastId += 1;
      // It throws for values that cannot be cloned: then the call is rejected, and nothing waits.
      const call = { id: lastId, name, values };
      port.postMessage(call);
      pending.set(lastId, { call, resolve, reject });
      if (name !== nested?.during) return;
      watched = lastId;
      silence.begin();
    });
  }

  function listen(to: Port): void {
    port = to;
    spoke = false;
    to.onmessage = ({ data }) => {
      spoke = true;
      if ('lock' in data) whenFree(data.lock, () => to === port && lose(lost('its worker has ended, perhaps for lack of memory.'), true));
      else if ('event' in data) {
        unwatch();
        onEvent?.(data.event as Event);
      } else void settle(data);
    };
    to.onerror = async ({ message }) => {
      if (message) return lose(lost(message), false);
      // The event of a script that is missing has no message.
      lose({ code: 'E_LOAD', argument: 'worker', message: await whyMissing() }, false);
    };
  }

  listen(first);
  return {
    call: (name, ...values) => send(name, values) as ReturnType<Remote<F>['call']>,
    ping: async () => void (await send('ping', [])),
    close: (reason) => close(lost(reason)),
  };
}

const lost = (message: string): Failure => ({ code: 'E_WORKER', message });

const errorOf = ({ message, ...parts }: Failure): Error => Object.assign(new Error(message), parts);

/** Calls `then` once the worker that holds a lock has ended. Pages over plain HTTP have no locks: there it is never called. */
function whenFree(lock: string, then: () => void): void {
  (navigator.locks as LockManager | undefined)?.request(lock, then).catch(() => {});
}
