// The worker of the visitor's own model. It starts when a model is opened.

import modelsWorker from 'multihead/models_worker.js?worker&url';
import type { GivenFiles, ModelCalls, ModelEvent } from './model/messages.js';
import { problemOf } from './model/problems.js';
import { ModelSession } from './model/session.js';
import { failureOf, type Implementation } from './workers/protocol.js';
import { serve } from './workers/serve.js';
import { createPolicy } from './workers/trusted_types.js';

/** Workers of a model at most: more take longer to start than they save in a model that a page can hold. */
const mostWorkers = 4;

/** The page's security policy lets a script start only from such an address. */
const addressOf = createPolicy('multihead', (name) => (name === 'models' ? modelsWorker : null));
/** The workers of a model share memory, which only an isolated page can. */
const workers = crossOriginIsolated
  ? { workers: Math.min(mostWorkers, navigator.hardwareConcurrency), worker: () => new Worker(addressOf('models'), { type: 'module' }) }
  : {};

const newSession = (): ModelSession => new ModelSession(workers);
let session = newSession();
/** The files of the model that is open. */
let files: GivenFiles = { name: 'this model', files: [] };
let aborter = new AbortController();
let patching = new AbortController();
let queue: Promise<unknown> = Promise.resolve();

/** Tells the page where the model computes, if that has changed. */
function tellPlace(): void {
  const place = session.place();
  if (place && told !== (told = JSON.stringify(place))) send(place);
}
let told = '';

/** Runs one call at a time: a model must not be replaced while it runs. */
function inTurn<T>(run: () => T | Promise<T>, about = files): Promise<T> {
  const again = async (error: unknown): Promise<T> => {
    if (about === files && (await session.leaveGpu(failureOf(error)))) return run();
    throw error;
  };
  const ran = queue.then(run).catch(again);
  const result = ran.finally(tellPlace).catch((error: unknown) => {
    const failure = failureOf(error);
    // The module is lost, and the model with it: the next model gets a new one.
    if (failure.code === 'E_FATAL') session = newSession();
    throw Object.assign(new Error(), failure, { message: problemOf(about, failure) });
  });
  queue = result.catch(() => {});
  return result;
}
const calls: Implementation<ModelCalls> = {
  open(given, weights, device) {
    aborter = new AbortController();
    const { signal } = aborter;
    const onProgress = (loaded: number, total: number): void => send({ loaded, total });
    return inTurn(async () => {
      const opened = await session.open(given, weights, { device, signal, onProgress });
      files = given;
      return opened;
    }, given);
  },
  abort: () => aborter.abort(),
  attend: (text) => inTurn(() => session.attend(text)),
  heads: (text, layer) => inTurn(() => session.heads(text, layer)),
  look: (pixels) => inTurn(() => session.look(pixels)),
  start: (text, change) => inTurn(() => session.start(text, change)),
  next: () => inTurn(() => session.next()),
  compare: (texts) => inTurn(() => session.compare(texts)),
  lens: (text) => inTurn(() => session.laboratory().lens(text)),
  pair: (texts, words) => inTurn(() => session.laboratory().pair(texts, words)),
  patch(kind) {
    patching = new AbortController();
    const { signal } = patching;
    return inTurn(() => session.laboratory().patch(kind, signal, send));
  },
  stop: () => patching.abort(),
  changed: (kind, layer, part) => inTurn(() => session.laboratory().changed(kind, layer, part)),
};

const send = serve<ModelCalls, ModelEvent>(calls, {
  attend: ({ weights }) => [weights.data.buffer],
  look: ({ weights }) => [weights.data.buffer],
});
