// The worker of the visitor's own model. It starts when a file is opened.

import { load, MultiheadError } from 'multihead';
import { messageOf } from './base/format.js';
import { formatBytes } from './model/limits.js';
import type { ModelCalls } from './model/messages.js';
import { ModelSession } from './model/session.js';
import { serve } from './workers/serve.js';

let session: Promise<ModelSession> | undefined;
const loaded = (): Promise<ModelSession> => (session ??= load().then((mh) => new ModelSession(mh)));

/** Throws if there is too little memory, or if the file is gone since it was chosen. */
async function bytesOf(file: File): Promise<ArrayBuffer> {
  try {
    return await file.arrayBuffer();
  } catch (error) {
    throw new Error(`the browser could not read its ${formatBytes(file.size)} into memory: ${messageOf(error)}`);
  }
}

let queue: Promise<unknown> = Promise.resolve();

/** Runs one call at a time: a model must not be replaced while it runs. */
function inTurn<T>(run: (model: ModelSession) => T | Promise<T>): Promise<T> {
  const result = queue.then(loaded).then(run);
  queue = result.catch((error: unknown) => {
    // The module is lost or did not load: the next call loads it again.
    if (error instanceof MultiheadError && ['E_FATAL', 'E_LOAD'].includes(error.code)) session = undefined;
  });
  return result;
}

serve<ModelCalls>({
  open: ({ model: file, vocabulary, merges, heads }) =>
    inTurn(async (model) =>
      model.open({
        model: await bytesOf(file),
        vocabulary: await vocabulary?.text(),
        merges: await merges?.text(),
        heads,
      }),
    ),
  attend: (text) => inTurn((model) => model.attend(text)),
  start: (text) => inTurn((model) => model.start(text)),
  next: () => inTurn((model) => model.next()),
});
