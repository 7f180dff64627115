// The page's connection to the worker. One request runs at a time; only the answer to the latest request is used. A
// worker that stops answering is replaced.

import { failureOf, ignore, type Failure } from '../workers/protocol.js';
import { connect as connectWorker, type Port, type Remote } from '../workers/remote.js';
import { watchSilence } from '../workers/silence.js';
import type { AttentionCalls, ForwardInput, ForwardResult } from './messages.js';

export type Trouble =
  /** The engine did not load, or could not compute. */
  | { readonly kind: 'failed'; readonly why: Failure }
  | { readonly kind: 'late' }
  /** The worker stopped answering; another one was started. */
  | { readonly kind: 'restarted' }
  /** The replacement worker does not answer either. */
  | { readonly kind: 'silent' };

export interface Listener {
  onResult(result: ForwardResult): void;
  /** The median duration of the last result's pass, in milliseconds. */
  onTimed?(milliseconds: number): void;
  onTrouble(trouble: Trouble): void;
}

/** Seconds to wait for an answer. A pass takes a few milliseconds; only loading over a slow connection takes this long. */
const longestSilence = 4;

interface Request {
  readonly id: number;
  readonly input: ForwardInput;
}

export function connect(start: () => Port, listener: Listener) {
  let lastId = 0;
  let running: Request | undefined;
  let waiting: Request | undefined;
  let answered = false;
  let restarted = false;
  /** True after a worker failed before its first answer: its script is missing or wrong, and the page says so. */
  let broken = false;
  /** Undefined after a worker has ended; the next request starts another one. */
  let remote: Remote<AttentionCalls> | undefined = open();

  function open(): Remote<AttentionCalls> {
    return connectWorker<AttentionCalls>(start(), {
      onLost(why, ended) {
        remote = undefined;
        if (ended) return running && restart(running);
        stop();
        broken = !answered;
        listener.onTrouble({ kind: 'failed', why });
      },
    });
  }

  function stop(): void {
    silence.end();
    running = undefined;
    waiting = undefined;
  }

  async function send(request: Request): Promise<void> {
    running = request;
    const used = (remote ??= open());
    silence.begin();
    try {
      const result = await used.call('forward', request.input);
      if (!finish(request)) return;
      listener.onResult(result);
      used.call('time').then((milliseconds) => showTime(request, milliseconds), ignore);
    } catch (error) {
      // The calls of a worker that has ended or was replaced are rejected, too.
      if (used !== remote || !finish(request)) return;
      listener.onTrouble({ kind: 'failed', why: failureOf(error) });
    }
  }

  /** Called when a request was answered: sends the waiting request. Returns false if the answer is to an old request. */
  function finish({ id }: Request): boolean {
    answered = true;
    restarted = false;
    running = undefined;
    silence.end();
    const next = waiting;
    waiting = undefined;
    if (next) void send(next);
    return id === lastId;
  }

  function showTime({ id }: Request, milliseconds: number | undefined): void {
    if (milliseconds !== undefined && id === lastId) listener.onTimed?.(milliseconds);
  }

  // Before its first answer a worker may still be loading; later, silence means that it hangs.
  const silence = watchSilence(
    () => longestSilence,
    () => {
      if (answered && running) restart(running);
      else listener.onTrouble({ kind: 'late' });
    },
  );

  function restart(request: Request): void {
    // Repeat the request only once, because it may be the cause of the worker's end.
    const next = waiting ?? (restarted ? undefined : request);
    listener.onTrouble({ kind: restarted ? 'silent' : 'restarted' });
    restarted = true;
    stop();
    remote?.close('it was replaced');
    remote = open();
    if (next) void send(next);
  }

  return {
    /** Requests a forward pass, which replaces a request that has not started yet. */
    request(input: ForwardInput): void {
      lastId += 1;
      const request = { id: lastId, input };
      if (broken) return;
      if (running === undefined) void send(request);
      else waiting = request;
    },
    /** Ignores the answers of all requests so far. */
    cancel(): void {
      lastId += 1;
      waiting = undefined;
    },
  };
}
