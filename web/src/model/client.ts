// The page's connection to the worker of a model. The worker starts at the first call, and again after it has ended.

import { connect as connectWorker, type Port, type Remote } from '../workers/remote.js';
import type { ModelCalls } from './messages.js';

export type ModelClient = Pick<Remote<ModelCalls>, 'call'>;

/** Calls `onLost` when the worker has ended: the model is lost, and all pending calls are rejected. */
export function connect(start: () => Port, onLost: () => void): ModelClient {
  let remote: Remote<ModelCalls> | undefined;

  function open(): Remote<ModelCalls> {
    return connectWorker<ModelCalls>(start(), {
      onLost() {
        remote = undefined;
        onLost();
      },
    });
  }

  return { call: (name, ...values) => (remote ??= open()).call(name, ...values) };
}
