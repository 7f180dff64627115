// The page's connection to the worker. One request runs at a time; only the answer to the latest request is used. A
// worker that stops answering is replaced.

import { whenEnded } from '../workers/worker_life.js';
import type { Answer, ForwardInput, ForwardResult, Request } from './messages.js';

/** A reason why numbers are missing or out of date. */
export type Trouble =
  /** The engine did not load, or could not compute. `argument` is copied from a MultiheadError. */
  | { readonly kind: 'failed'; readonly reason: string; readonly argument?: string }
  /** The first answer is late. */
  | { readonly kind: 'late' }
  /** The worker stopped answering; another one was started. */
  | { readonly kind: 'restarted' }
  /** The replacement worker does not answer either. */
  | { readonly kind: 'silent' };

export interface AttentionClient {
  /** Requests a forward pass, which replaces a request that has not started yet. */
  request(input: ForwardInput): void;
  /** Ignores the answers of all requests so far. */
  cancel(): void;
}

export interface Listener {
  onResult(result: ForwardResult): void;
  /** The median duration of the last result's pass, in milliseconds. */
  onTimed?(milliseconds: number): void;
  onTrouble(trouble: Trouble): void;
}

/** The part of Worker that the client uses. */
export interface Port {
  postMessage(request: Request): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<Answer>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

/** Milliseconds to wait for an answer. A pass takes a few; only loading over a slow connection takes this long. */
const patience = 3500;

export function connect(start: () => Port, listener: Listener): AttentionClient {
  let lastId = 0;
  let running: Request | undefined;
  let waiting: Request | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let answered = false;
  let restarted = false;
  /** True after a worker failed before its first answer: its script is missing or wrong, and the page says so. */
  let broken = false;
  /** Undefined after an idle worker has ended; the next request starts another one. */
  let port: Port | undefined = open();

  function open(): Port {
    const opened = start();
    opened.onmessage = ({ data }) => {
      if (data.kind === 'lock') whenEnded(data.lock, () => opened === port && lose());
      else receive(data);
    };
    opened.onerror = (event) => {
      stop();
      broken = !answered;
      listener.onTrouble({ kind: 'failed', reason: event.message || 'its worker script could not be loaded' });
    };
    return opened;
  }

  function stop(): void {
    clearTimeout(timer);
    running = undefined;
    waiting = undefined;
  }

  function send(request: Request): void {
    running = request;
    port ??= open();
    port.postMessage(request);
    clearTimeout(timer);
    if (!broken) timer = setTimeout(() => replace(request), patience);
  }

  /**
   * Called when an answer is late. Before its first answer a worker may still be loading; later, silence means that it
   * has ended or hangs.
   */
  function replace(request: Request): void {
    if (answered) restart(request);
    else listener.onTrouble({ kind: 'late' });
  }

  /** Called when the worker has ended. */
  function lose(): void {
    if (running) restart(running);
    else port = undefined;
  }

  function restart(request: Request): void {
    // Repeat the request only once, because it may be the cause of the worker's end.
    const next = waiting ?? (restarted ? undefined : request);
    listener.onTrouble({ kind: restarted ? 'silent' : 'restarted' });
    restarted = true;
    stop();
    port?.terminate();
    port = open();
    if (next) send(next);
  }

  function receive(answer: Exclude<Answer, { kind: 'lock' }>): void {
    if (answer.kind === 'timed') {
      if (answer.id === lastId) listener.onTimed?.(answer.milliseconds);
      return;
    }
    answered = true;
    restarted = false;
    if (answer.id === running?.id) {
      running = undefined;
      clearTimeout(timer);
    }
    if (waiting) {
      send(waiting);
      waiting = undefined;
    }
    if (answer.id !== lastId) return;
    if (answer.kind === 'result') listener.onResult(answer.result);
    else listener.onTrouble({ ...answer, reason: answer.message });
  }

  return {
    request(input) {
      lastId += 1;
      const request = { id: lastId, ...input };
      if (running === undefined) send(request);
      else waiting = request;
    },
    cancel() {
      lastId += 1;
      waiting = undefined;
    },
  };
}
