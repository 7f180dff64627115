// The worker: runs the WebAssembly module outside the page's main thread.

import { load, MultiheadError, type Multihead } from 'multihead';
import { createForward, type Forward } from './attention/forward.js';
import type { Answer, ForwardResult, Request } from './attention/messages.js';
import { medianTime } from './base/timing.js';
import { holdForLife } from './workers/worker_life.js';

/** The part of DedicatedWorkerGlobalScope that is used; TypeScript's DOM library does not declare it. */
interface Scope {
  onmessage: ((event: MessageEvent<Request>) => void) | null;
  postMessage(answer: Answer, transfer: Transferable[]): void;
}
const scope = self as unknown as Scope;

holdForLife((lock) => scope.postMessage({ kind: 'lock', lock }, []));

let current: { mh: Multihead; forward: Forward } | undefined;
/** Id of the last request. */
let latest = 0;

async function answer({ id, ...input }: Request): Promise<void> {
  // After a fatal error, load() gives a new instance.
  const mh = await load();
  if (current?.mh !== mh) current = { mh, forward: createForward(mh) };
  const result = current.forward(input);
  scope.postMessage({ kind: 'result', id, result }, buffersOf(result));
  const { forward } = current;
  const milliseconds = await medianTime(() => forward.pass(input), () => id === latest);
  if (milliseconds !== undefined) scope.postMessage({ kind: 'timed', id, milliseconds }, []);
}

/** Buffers that the worker no longer needs, to be transferred instead of copied. */
function buffersOf({ trace, meanWeights, straight, split }: ForwardResult): Transferable[] {
  const matrices = [
    ...Object.values(trace),
    meanWeights,
    ...(straight ? [straight.weights, straight.output] : []),
    ...[split.heads, split.reshaped].filter((matrix) => matrix !== null),
  ];
  return [...new Set(matrices.map(({ data }) => data.buffer as ArrayBuffer))];
}

scope.onmessage = ({ data: request }) => {
  latest = request.id;
  answer(request).catch((error: unknown) => {
    const message = error instanceof Error ? error.message : String(error);
    const named = error instanceof MultiheadError ? { argument: error.argument } : {};
    scope.postMessage({ kind: 'failed', id: request.id, message, ...named }, []);
  });
};
