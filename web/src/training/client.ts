// The page's connection to a training worker: calls that return promises, reports of a run, and a check that the worker
// still answers.

import { WorkerCalls } from '../workers/worker_calls.js';
import { whenEnded } from '../workers/worker_life.js';
import type { Calls, CallName, Progress, Reply, Request } from './messages.js';

/** The part of Worker that the client uses. */
export interface Port {
  postMessage(request: Request): void;
  terminate(): void;
  onmessage: ((event: MessageEvent<Reply>) => void) | null;
  onerror: ((event: ErrorEvent) => void) | null;
}

export interface Listener {
  /** Call `seen` once the page has drawn the progress; the worker waits for it before the next report. */
  onReport(progress: Progress, seen: () => void): void;
  /** Called when the worker has ended or does not answer. All pending calls are rejected. */
  onLost(reason: string): void;
}

export interface Client {
  call<N extends CallName>(name: N, ...values: Parameters<Calls[N]>): Promise<ReturnType<Calls[N]>>;
  close(): void;
}

/** Milliseconds between two checks of the worker, and milliseconds without an answer after which it counts as lost. */
const lookEvery = 1000;
const patience = 4000;
/** Replaces `patience` before the first answer: the script and the module may load over a slow connection. */
const firstPatience = 20_000;

export function connect(port: Port, listener: Listener): Client {
  const calls = new WorkerCalls();
  let lost: string | undefined;
  let watch: ReturnType<typeof setInterval> | undefined;
  /** Milliseconds without a message from the worker, counted only while a call waits. */
  let silence = 0;
  let heard = false;

  function lose(reason: string): void {
    if (lost !== undefined) return;
    close(reason);
    listener.onLost(reason);
  }

  function close(reason: string): void {
    lost = reason;
    clearInterval(watch);
    port.terminate();
    calls.rejectAll(reason);
  }

  // Silence is counted in checks instead of by a clock: a tab that was frozen then does not blame the worker for its
  // own pause.
  function look(): void {
    if (silence >= (heard ? patience : firstPatience)) lose('it stopped answering');
    else if (calls.waiting > 0) {
      silence += lookEvery;
      port.postMessage({ name: 'ping' });
    }
  }

  port.onmessage = ({ data: reply }) => {
    if (reply.kind === 'lock') return whenEnded(reply.lock, () => lose('perhaps for lack of memory'));
    silence = 0;
    heard = true;
    if (reply.kind === 'report') listener.onReport(reply.progress, () => lost ?? port.postMessage({ name: 'seen' }));
    else if (reply.kind === 'done') calls.resolve(reply.id, reply.value);
    else if (reply.kind === 'failed') calls.reject(reply.id, reply.message);
  };
  port.onerror = (event) => lose(event.message || 'its script could not be loaded');

  return {
    call: (name, ...values) => {
      if (lost !== undefined) return Promise.reject(new Error(lost));
      return calls.start((id) => {
        watch ??= setInterval(look, lookEvery);
        port.postMessage({ name, id, values });
      });
    },
    close: () => close('it was closed'),
  };
}
