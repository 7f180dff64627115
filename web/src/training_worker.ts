// The training worker: answers the page's calls, and reports the progress of a run.

import { load } from 'multihead';
import type { Reply, Request } from './training/messages.js';
import { Run } from './training/run.js';
import { holdForLife } from './workers/worker_life.js';

/** The part of DedicatedWorkerGlobalScope that is used; TypeScript's DOM library does not declare it. */
interface Scope {
  onmessage: ((event: MessageEvent<Request>) => void) | null;
  postMessage(reply: Reply): void;
}
const scope = self as unknown as Scope;

holdForLife((lock) => scope.postMessage({ kind: 'lock', lock }));

const made = load().then((mh) => new Run(mh, (progress) => scope.postMessage({ kind: 'report', progress })));
made.catch(() => {}); // each call reports the error

async function answer(request: Request): Promise<void> {
  if (request.name === 'ping') return scope.postMessage({ kind: 'pong' });
  if (request.name === 'seen') return (await made).seen();
  const { id, name, values } = request;
  try {
    const run = await made;
    const method = run[name] as (...values: unknown[]) => unknown;
    scope.postMessage({ kind: 'done', id, value: await method.apply(run, [...values]) });
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    scope.postMessage({ kind: 'failed', id, message });
  }
}

scope.onmessage = ({ data }) => void answer(data);
