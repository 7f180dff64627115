// The types of traces: which steps of a forward pass are copied out.

/**
 * Names of the steps of a forward pass, in the order of computation. H and H_kv are the numbers of
 * heads; N counts all keys, including those that the module appends. Shapes in a trace are always
 * batch-first, with B = 1 for an unbatched call. `width` is headDim, or valueDim for `v` and `vHeads`.
 *
 * `x` (B, N_q, embedDim) · `xKey`, `xValue` (B, N_k, kdim or vdim), in cross-attention only · `q`, `k`,
 * `v` (B, N_q or N_k, heads · width) · `qHeads`, `kHeads`, `vHeads` (B, H or H_kv, N_q or N, width),
 * after QK-norm and RoPE · `scores` (B, H, N_q, N), raw Q·Kᵀ · `scaledScores` · `maskedScores`,
 * −Infinity for hidden keys · `weights`, before dropout · `headsOut` (B, H, N_q, valueDim) · `merged`
 * (B, N_q, H · valueDim), after {@link HeadTools.scales} · `headShares` (B, H, N_q, outDim): each head's
 * part of the output, z_h·W_Oʰ; their sum is the output without its bias; only with an output
 * projection · `output` (B, N_q, outDim)
 *
 * A module with `kvLatentDim` also has `qLatent` (B, N_q, qLatentDim), if `qLatentDim` is not 0, and
 * `kvLatent` (B, N_k, kvLatentDim), both after their norm, and `kRope` (B, N_k, ropeHeadDim), before RoPE.
 * In step() it has `latentOut` (B, H, N_q, kvLatentDim) instead of `k` and `v`.
 *
 * In {@link MultiHeadAttention.step}, `k`, `v`, `kHeads` and `vHeads` hold the new tokens only.
 */
export type TraceName =
  | 'x'
  | 'xKey'
  | 'xValue'
  | 'qLatent'
  | 'kvLatent'
  | 'kRope'
  | 'q'
  | 'k'
  | 'v'
  | 'qHeads'
  | 'kHeads'
  | 'vHeads'
  | 'scores'
  | 'scaledScores'
  | 'maskedScores'
  | 'weights'
  | 'latentOut'
  | 'headsOut'
  | 'merged'
  | 'headShares'
  | 'output';

/** Steps that only some calls have. */
export type ConditionalTraceName = 'xKey' | 'xValue' | 'qLatent' | 'kvLatent' | 'kRope' | 'latentOut' | 'headShares';

/** One step of a forward pass: a copy on the JavaScript heap, which needs no dispose(). */
export interface TraceStep<N extends TraceName = TraceName> {
  /** Which step. */
  readonly name: N;
  /** Shape as listed at {@link TraceName}. */
  readonly shape: number[];
  /** Row-major. */
  readonly data: Float32Array;
}

/** Value of the option `trace`: `true` for all steps, `false` for none, or the names of steps. */
export type TraceOption = boolean | readonly TraceName[];

type Traced<N extends TraceName> = {
  readonly [M in Exclude<N, ConditionalTraceName>]: TraceStep<M>;
} & {
  readonly [M in Extract<N, ConditionalTraceName>]?: TraceStep<M>;
};

/** The steps that a {@link TraceOption} selects, by name and in the order of computation. */
export type TraceOf<T extends TraceOption> = T extends true ? Traced<TraceName> : T extends readonly TraceName[] ? Traced<T[number]> : undefined;
