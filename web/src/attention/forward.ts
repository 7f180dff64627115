// Computes one forward pass for the page: the trace of every step, and further numbers for the sections.

import type { ForwardOptions, Multihead } from 'multihead';
import { headStatistics } from 'multihead/lab';
import { fitting, isUnbent, unbent, editedRow, hides, type Bend } from './bend.js';
import { embed, embedDim as ruleEmbedDim } from './embedding.js';
import { transposed, type Matrix } from './matrix.js';
import { tracedSteps, type ForwardInput, type ForwardResult, type GivenHeads, type Trace } from './messages.js';
import { buildWeights, headDim as ruleHeadDim } from './patterns.js';
import { createNovels } from './novels.js';
import { identityOf } from './tokens.js';

type Module = ReturnType<typeof makeModule>;
export type Forward = ReturnType<typeof createForward>;

/**
 * Makes the function that runs forward passes. It keeps one module, for the heads of the last call.
 * @param words gives the file of the words model, which is needed only for inputs with `reads`
 */
export function createForward(mh: Multihead, words = (): string => '') {
  let key = '';
  let current: Module | undefined;
  let novels: ReturnType<typeof createNovels> | undefined;
  let read: (ReturnType<NonNullable<typeof novels>['read']> & { input: ForwardInput }) | undefined;

  /** The input with the heads of the words model, if it asks for them. */
  function complete(input: ForwardInput): ForwardInput {
    if (input.reads === undefined) return input;
    novels ??= createNovels(mh, words());
    if (read?.input !== input) read = { input, ...novels.read(input.tokens, input.reads) };
    return { ...input, given: read.given };
  }

  function moduleFor({ heads, given }: ForwardInput): Module {
    const wanted = given?.key ?? heads.join();
    if (current && key === wanted) return current;
    current?.module.dispose();
    current = undefined;
    current = makeModule(mh, heads, given);
    key = wanted;
    return current;
  }

  const embedded = ({ tokens, given }: ForwardInput) => ({
    data: given?.x ?? embed(tokens),
    shape: [1, tokens.length, given?.embedDim ?? ruleEmbedDim],
  });

  function forward(asked: ForwardInput): ForwardResult {
    const input = complete(asked);
    const used = moduleFor(input);
    const { weights, embedDim, headDim } = used;
    const numbers = mh.scope(() => {
      const x = embedded(input);
      const trace = traceOf(mh, used, x, input);
      const plain = isUnbent(input.bend) ? null : traceOf(mh, used, x, { ...input, bend: unbent });
      return {
        trace,
        straight: plain && {
          weights: plain.weights,
          output: plain.output,
          statistics: aboutWeights(mh, plain.weights, input.tokens).statistics,
        },
        ...aboutWeights(mh, trace.weights, input.tokens),
      };
    });
    const next = asked.reads === undefined ? (asked.given?.next ?? null) : read!.next(numbers.trace.output);
    return { ...input, embedDim, headDim, weights, ...numbers, next, backend: mh.backend, memory: mh.memory() };
  }

  let timed: { input: ForwardInput; x: Matrix } | undefined;
  /** Runs the pass without a trace, for timing. */
  function pass(input: ForwardInput): void {
    const full = complete(input);
    if (timed?.input !== input) timed = { input, x: embedded(full) };
    const { module } = moduleFor(full);
    module.forward(timed.x, options(input.causal, input.bend, input.heads.length)).output.dispose();
  }

  return Object.assign(forward, { pass });
}

function makeModule(mh: Multihead, heads: ForwardInput['heads'], given: GivenHeads | undefined) {
  const weights = given?.weights ?? buildWeights(heads);
  const { embedDim, headDim } = given ?? { embedDim: ruleEmbedDim, headDim: ruleHeadDim };
  const wide = heads.length * headDim;
  const { inBias, outBias } = weights;
  const config = { embedDim, numHeads: heads.length, headDim, bias: inBias !== undefined, rope: given?.rope };
  const module = mh.multiHeadAttention(config);
  try {
    module.loadStateDict({
      q_proj_weight: { data: weights.qProj, shape: [wide, embedDim] },
      k_proj_weight: { data: weights.kProj, shape: [wide, embedDim] },
      v_proj_weight: { data: weights.vProj, shape: [wide, embedDim] },
      'out_proj.weight': { data: weights.outProj, shape: [embedDim, wide] },
      ...(inBias &&
        outBias && {
          in_proj_bias: { data: inBias, shape: [3 * wide] },
          'out_proj.bias': { data: outBias, shape: [embedDim] },
        }),
    });
  } catch (error) {
    module.dispose();
    throw error;
  }
  return { module, weights, embedDim, headDim };
}

function options(causal: boolean, bend: Bend, heads: number) {
  const { window, temperature, divisor, muted, withoutOutput } = bend;
  return {
    causal: causal ? 'topLeft' : false,
    ...(window >= 0 && { window: { left: window, right: window } }),
    ...(divisor === 'none' && { scale: 1 }),
    heads: {
      temperature,
      skipOutProj: withoutOutput,
      ...(divisor === 'model' && { scaleByEmbedDim: true }),
      ...(muted.length > 0 && {
        scales: Float32Array.from({ length: heads }, (_, head) => (muted.includes(head) ? 0 : 1)),
      }),
    },
  } as const satisfies ForwardOptions;
}

function traceOf(mh: Multihead, used: Module, x: Matrix, { tokens, heads, causal, bend }: ForwardInput): Trace {
  const { trace, output } = used.module.forward(x, { ...options(causal, bend, heads.length), trace: tracedSteps });
  output.dispose();
  const steps = Object.entries(trace) as [keyof Trace, Matrix][];
  const plain = Object.fromEntries(steps.map(([name, { shape, data }]) => [name, { shape, data }])) as unknown as Trace;
  const edits = fitting(bend, causal, tokens.length, heads.length);
  return edits.length === 0 ? plain : afterEdits(mh, plain, used, causal, { ...bend, edits });
}

/** Applies the weights that were set by hand to a trace, and recomputes every step after the weights. */
function afterEdits(
  mh: Multihead,
  trace: Trace,
  { weights: { outProj, outBias }, embedDim, headDim }: Module,
  causal: boolean,
  { edits, muted, window, withoutOutput }: Bend,
): Trace {
  const [, heads, n] = trace.weights.shape as [number, number, number];
  const weights = trace.weights.data.slice();
  const rows = new Map<number, Map<number, number>>();
  for (const { head, query, key, weight } of edits) {
    const row = head * n + query;
    rows.set(row, (rows.get(row) ?? new Map<number, number>()).set(key, weight));
  }
  for (const [row, set] of rows) {
    const [begin, end] = [row * n, (row + 1) * n];
    const hidden = (key: number) => hides(causal, window, row % n, key);
    weights.set(editedRow(weights.subarray(begin, end), set, hidden), begin);
  }
  const headsOut = new Float32Array(trace.headsOut.data.length);
  const merged = new Float32Array(trace.merged.data.length);
  const wide = heads * headDim;
  for (let head = 0; head < heads; head += 1) {
    const values = trace.vHeads.data.subarray(head * n * headDim, (head + 1) * n * headDim);
    const { data } = mh.linear(
      { data: weights.subarray(head * n * n, (head + 1) * n * n), shape: [n, n] },
      { data: transposed(values, n, headDim), shape: [headDim, n] },
    );
    headsOut.set(data, head * n * headDim);
    if (muted.includes(head)) continue;
    for (let i = 0; i < n; i += 1) {
      merged.set(data.subarray(i * headDim, (i + 1) * headDim), i * wide + head * headDim);
    }
  }
  const output = withoutOutput
    ? merged.slice()
    : mh
        .linear(
          { data: merged, shape: [n, wide] },
          { data: outProj, shape: [embedDim, wide] },
          outBias && { bias: { data: outBias, shape: [embedDim] } },
        )
        .toFloat32();
  return {
    ...trace,
    weights: { ...trace.weights, data: weights },
    headsOut: { ...trace.headsOut, data: headsOut },
    merged: { ...trace.merged, data: merged },
    output: { ...trace.output, data: output },
  };
}

function aboutWeights(mh: Multihead, { data, shape }: Matrix, tokens: readonly string[]) {
  const [, heads, n] = shape as [number, number, number];
  const words = tokens.map(identityOf);
  const ids = Int32Array.from(words, (word) => words.indexOf(word));
  const mean = mh.linear(
    { data: transposed(data, heads, n * n), shape: [n * n, heads] },
    { data: new Float32Array(heads).fill(1 / heads), shape: [1, heads] },
  );
  return {
    statistics: headStatistics(mh, { data, shape }, { tokens: ids }),
    meanWeights: { data: mean.toFloat32(), shape: [n, n] },
  };
}
