// The worker of a model that the visitor brought. It starts when a file is dropped.

import { load } from 'multihead';
import type { GivenFiles, Reply, Request } from './model/messages.js';
import { ModelSession } from './model/session.js';

/** The part of DedicatedWorkerGlobalScope that is used; TypeScript's DOM library does not declare it. */
interface Scope {
  onmessage: ((event: MessageEvent<Request>) => void) | null;
  postMessage(reply: Reply): void;
}
const scope = self as unknown as Scope;
const session = load().then((mh) => new ModelSession(mh));
session.catch(() => {}); // each call reports it

async function run({ name, values }: Request): Promise<unknown> {
  const opened = await session;
  if (name === 'next') return opened.next();
  if (name === 'look') return opened.look(values[0] as string);
  if (name === 'start') return opened.start(values[0] as string);
  const { model, vocabulary, merges, heads } = values[0] as GivenFiles;
  return opened.open({
    model: await model.arrayBuffer(),
    vocabulary: await vocabulary?.text(),
    merges: await merges?.text(),
    heads,
  });
}

// One call at a time: a model must not be replaced while it runs.
let queue: Promise<unknown> = Promise.resolve();
scope.onmessage = ({ data: request }) => {
  queue = queue.then(() =>
    run(request).then(
      (value) => scope.postMessage({ id: request.id, value }),
      (error: unknown) => {
        const failure = error instanceof Error ? error.message : String(error);
        scope.postMessage({ id: request.id, failure });
      },
    ),
  );
};
