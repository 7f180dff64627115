// The page's connection to a training worker: its calls and reports, and a check that the worker still answers.

import { ignore, type Failure } from '../workers/protocol.js';
import { connect as connectWorker, type Port, type Remote } from '../workers/remote.js';
import { watchSilence } from '../workers/silence.js';
import type { Progress, TrainingCalls } from './messages.js';

export interface Listener {
  /** Call `seen` once the page has drawn the progress; the worker waits for it before the next report. */
  onReport(progress: Progress, seen: () => void): void;
  /** Called when the worker has ended or does not answer. All pending calls are rejected. */
  onLost(why: Failure): void;
}

export interface Client {
  readonly call: Remote<TrainingCalls>['call'];
  close(): void;
}

/** Seconds without an answer after which a worker counts as lost. */
const longestSilence = 5;
/** Replaces `longestSilence` before the first answer: the script and the module may load over a slow connection. */
const longestStart = 20;

export function connect(port: Port, { onReport, onLost }: Listener): Client {
  const remote = connectWorker<TrainingCalls, Progress>(port, {
    onEvent(progress) {
      heard();
      onReport(progress, () => void remote.call('seen').catch(ignore));
    },
    onLost(why) {
      silence.end();
      onLost(why);
    },
  });
  let answered = false;
  /** Number of calls without an answer. */
  let waiting = 0;
  const silence = watchSilence(
    () => (answered ? longestSilence : longestStart),
    () => {
      const message = 'its worker stopped answering';
      close(message);
      onLost({ message });
    },
    () => remote.ping().then(heard, ignore),
  );

  function heard(): void {
    answered = true;
    if (waiting > 0) silence.begin();
    else silence.end();
  }

  function close(reason: string): void {
    silence.end();
    remote.close(reason);
  }

  return {
    async call(name, ...values) {
      if (waiting === 0) silence.begin();
      waiting += 1;
      try {
        return await remote.call(name, ...values);
      } finally {
        waiting -= 1;
        heard();
      }
    },
    close: () => close('it was closed'),
  };
}
