// The worker: runs the WebAssembly module outside the page's main thread.

import { load, type Multihead, type MultiHeadAttention } from 'multihead';
import { embed, embedDim } from './embedding.js';
import type { Answer, ForwardInput, ForwardResult, Matrix, Request, Trace } from './messages.js';
import { tracedSteps } from './messages.js';
import { buildWeights, headDim, type ModuleWeights } from './patterns.js';

/** The part of DedicatedWorkerGlobalScope that is used; TypeScript's DOM library does not declare it. */
interface Scope {
  onmessage: ((event: MessageEvent<Request>) => void) | null;
  postMessage(answer: Answer, transfer: Transferable[]): void;
}
const scope = self as unknown as Scope;

/** The module of the chosen heads. Its weights do not depend on the sentence. */
let current: { key: string; layer: MultiHeadAttention; weights: ModuleWeights } | undefined;

function moduleFor(
  mh: Multihead,
  heads: ForwardInput['heads'],
): { layer: MultiHeadAttention; weights: ModuleWeights } {
  const key = heads.join();
  if (current?.key === key) return current;
  current?.layer.dispose();
  current = undefined;
  const weights = buildWeights(heads);
  const wide = [heads.length * headDim, embedDim];
  const layer = mh.multiHeadAttention({ embedDim, numHeads: heads.length, headDim, bias: false });
  layer.loadStateDict({
    q_proj_weight: { data: weights.qProj, shape: wide },
    k_proj_weight: { data: weights.kProj, shape: wide },
    v_proj_weight: { data: weights.vProj, shape: wide },
    'out_proj.weight': { data: weights.outProj, shape: [embedDim, heads.length * headDim] },
  });
  current = { key, layer, weights };
  return current;
}

/** Mean duration of a call over `span` milliseconds; one call is too short for the coarse clocks of browsers. */
function meanOver(span: number, call: () => void): number {
  const start = performance.now();
  let calls = 0;
  let elapsed = 0;
  while (elapsed < span) {
    call();
    calls += 1;
    elapsed = performance.now() - start;
  }
  return elapsed / calls;
}

async function forward({ tokens, heads, causal }: ForwardInput): Promise<ForwardResult> {
  const mh = await load();
  const { layer, weights } = moduleFor(mh, heads);
  const numbers = mh.scope(() => {
    const x = mh.tensor([1, tokens.length, embedDim], embed(tokens));
    const mask = { causal: causal ? 'topLeft' : false } as const;
    const { trace, output } = layer.forward(x, { ...mask, trace: tracedSteps });
    output.dispose();
    const pass = () => layer.forward(x, mask).output.dispose();
    meanOver(2, pass); // warm up the engine's compiler
    const milliseconds = meanOver(4, pass);
    return { trace: plain(trace), milliseconds };
  });
  return { tokens, heads, causal, weights, ...numbers, backend: mh.backend, memory: mh.memory() };
}

function plain(trace: Trace): Trace {
  const steps = Object.entries(trace) as [keyof Trace, Matrix][];
  return Object.fromEntries(
    steps.map(([name, { shape, data }]) => [name, { shape, data }]),
  ) as unknown as Trace;
}

scope.onmessage = ({ data: { id, ...input } }) => {
  forward(input).then(
    (result) => {
      const buffers = Object.values(result.trace).map(({ data }) => data.buffer as ArrayBuffer);
      scope.postMessage({ kind: 'result', id, result }, [...new Set(buffers)]);
    },
    (error: unknown) => {
      const message = error instanceof Error ? error.message : String(error);
      scope.postMessage({ kind: 'failed', id, message }, []);
    },
  );
};
