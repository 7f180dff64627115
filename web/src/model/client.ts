// The page's connection to the worker of a model. The worker starts at the first call, and again after it has ended.

import { connect as connectWorker, type Port, type Remote } from '../workers/remote.js';
import type { ModelCalls, ModelEvent } from './messages.js';

export type ModelClient = Pick<Remote<ModelCalls>, 'call'>;

interface Listener {
  /** Called while open() reads weights, and while patch() runs. */
  onEvent(event: ModelEvent): void;
  /** Called when the worker has ended: the model is lost, and all pending calls are rejected. */
  onLost(): void;
}

export function connect(start: () => Port, { onEvent, onLost }: Listener): ModelClient {
  let remote: Remote<ModelCalls> | undefined;

  function open(): Remote<ModelCalls> {
    return connectWorker<ModelCalls, ModelEvent>(start(), {
      onEvent,
      nested: { during: 'open', start },
      onLost() {
        remote = undefined;
        onLost();
      },
    });
  }

  return { call: (name, ...values) => (remote ??= open()).call(name, ...values) };
}
