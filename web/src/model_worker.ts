// The worker of the visitor's own model. It starts when a file is opened.

import { load, MultiheadError } from 'multihead';
import { formatBytes } from './model/limits.js';
import type { GivenFiles, Reply, Request } from './model/messages.js';
import { ModelSession } from './model/session.js';
import { holdForLife } from './workers/worker_life.js';

/** The part of DedicatedWorkerGlobalScope that is used; TypeScript's DOM library does not declare it. */
interface Scope {
  onmessage: ((event: MessageEvent<Request>) => void) | null;
  postMessage(reply: Reply): void;
}
const scope = self as unknown as Scope;

holdForLife((lock) => scope.postMessage({ lock }));

let session: Promise<ModelSession> | undefined;
const opened = (): Promise<ModelSession> => (session ??= load().then((mh) => new ModelSession(mh)));

/** Throws if there is too little memory, or if the file is gone since it was chosen. */
async function bytesOf(file: File): Promise<ArrayBuffer> {
  try {
    return await file.arrayBuffer();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new Error(`the browser could not read its ${formatBytes(file.size)} into memory: ${reason}`);
  }
}

async function run({ name, values }: Request): Promise<unknown> {
  const model = await opened();
  if (name === 'next') return model.next();
  if (name === 'look') return model.look(values[0] as string);
  if (name === 'start') return model.start(values[0] as string);
  const files = values[0] as GivenFiles;
  return model.open({
    model: await bytesOf(files.model),
    vocabulary: await files.vocabulary?.text(),
    merges: await files.merges?.text(),
    heads: files.heads,
  });
}

// One call at a time: a model must not be replaced while it runs.
let queue: Promise<unknown> = Promise.resolve();
scope.onmessage = ({ data: request }) => {
  queue = queue.then(() =>
    run(request).then(
      (value) => scope.postMessage({ id: request.id, value }),
      (error: unknown) => {
        // The module is lost or did not load: the next call loads it again.
        if (error instanceof MultiheadError && ['E_FATAL', 'E_LOAD'].includes(error.code)) session = undefined;
        const failure = error instanceof Error ? error.message : String(error);
        scope.postMessage({ id: request.id, failure });
      },
    ),
  );
};
