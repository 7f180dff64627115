// The page's connection to a training worker: its calls and reports, and a check that the worker still answers.

import { connect as connectWorker, type Port, type Remote } from '../workers/remote.js';
import type { Progress, TrainingCalls } from './messages.js';

export interface Listener {
  /** Call `seen` once the page has drawn the progress; the worker waits for it before the next report. */
  onReport(progress: Progress, seen: () => void): void;
  /** Called when the worker has ended or does not answer. All pending calls are rejected. */
  onLost(reason: string): void;
}

export interface Client {
  readonly call: Remote<TrainingCalls>['call'];
  close(): void;
}

/** Milliseconds between two checks of the worker, and milliseconds without an answer after which it counts as lost. */
const checkEvery = 1000;
const longestSilence = 4000;
/** Replaces `longestSilence` before the first answer: the script and the module may load over a slow connection. */
const longestStart = 20_000;

export function connect(port: Port, { onReport, onLost }: Listener): Client {
  const remote = connectWorker<TrainingCalls, Progress>(port, {
    onEvent(progress) {
      endSilence();
      onReport(progress, () => void remote.call('seen').catch(ignore));
    },
    onLost: (reason, ended) => end(ended ? 'perhaps for lack of memory' : reason.replace(/\.$/, '')),
  });
  let timer: ReturnType<typeof setInterval> | undefined;
  /** Milliseconds without a message from the worker, counted only while a call waits. */
  let silence = 0;
  let answered = false;
  /** Number of calls without an answer. */
  let waiting = 0;

  function endSilence(): void {
    silence = 0;
    answered = true;
  }

  function end(reason: string): void {
    clearInterval(timer);
    onLost(reason);
  }

  // Silence is counted in checks instead of by a clock: a tab that was frozen then does not blame the worker for its
  // own pause.
  function check(): void {
    if (silence >= (answered ? longestSilence : longestStart)) {
      remote.close('it stopped answering');
      end('it stopped answering');
    } else if (waiting > 0) {
      silence += checkEvery;
      remote.ping().then(endSilence, ignore);
    }
  }

  return {
    async call(name, ...values) {
      timer ??= setInterval(check, checkEvery);
      waiting += 1;
      try {
        return await remote.call(name, ...values);
      } finally {
        waiting -= 1;
        endSilence();
      }
    },
    close() {
      clearInterval(timer);
      remote.close('it was closed');
    },
  };
}

const ignore = (): void => {};
