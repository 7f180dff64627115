// The workers of the story: each starts with the first call to it.

import type { AttentionCalls } from '../attention/messages.js';
import type { StartWorker } from '../state/app.js';
import { createTrainings } from '../training/kinds.js';
import type { TrainingCalls } from '../training/messages.js';
import { defaultSeed, settingsOf, rates } from '../training/settings.js';
import type { Functions } from '../workers/protocol.js';
import { connect, type Remote } from '../workers/remote.js';
import type { Engine } from './stage.js';

export function createEngine(startWorker: StartWorker): Engine {
  /** A worker that has ended is started anew by the next call. */
  function lazily<F extends Functions<F>>(name: 'attention' | 'training'): () => Remote<F> {
    let remote: Remote<F> | undefined;
    return () => (remote ??= connect<F>(startWorker(name), { onLost: () => (remote = undefined) }));
  }
  const attention = lazily<AttentionCalls>('attention');
  const peeking = lazily<TrainingCalls>('training');
  const settings = settingsOf({ train: 'fourJobs', seed: defaultSeed, trainHeads: null, layers: null, rate: rates.usual });
  return {
    attend: (input) => attention().call('attend', input),
    forward: (input) => attention().call('forward', input),
    peek: (steps, fresh) => peeking().call('peek', steps, fresh),
    training: createTrainings(settings, { startWorker: () => startWorker('training'), nextFrame: (run) => void requestAnimationFrame(run) }),
  };
}
