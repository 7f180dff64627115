// A multi-head attention layer and the trace of its steps.

import type { MaskOptions } from './attention_types.js';
import type { Tensor, TensorLike } from './tensor_types.js';

/**
 * Weights of a multi-head attention layer, in the layout of `torch.nn.MultiheadAttention`: rows are
 * outputs, y = x·Wᵀ + b. Rows h·headDim to (h+1)·headDim − 1 of a projection belong to head h.
 */
export interface MultiHeadAttentionWeights {
  /** (numHeads·headDim, embedDim) */
  readonly qProj: TensorLike;
  /** (numHeads·headDim, embedDim) */
  readonly kProj: TensorLike;
  /** (numHeads·headDim, embedDim) */
  readonly vProj: TensorLike;
  /** (embedDim, numHeads·headDim). Without it the heads side by side are the output. */
  readonly outProj?: TensorLike | undefined;
  /** (numHeads·headDim). Default none. */
  readonly qBias?: TensorLike | undefined;
  /** (numHeads·headDim). Default none. */
  readonly kBias?: TensorLike | undefined;
  /** (numHeads·headDim). Default none. */
  readonly vBias?: TensorLike | undefined;
  /** (embedDim), only with `outProj`. Default none. */
  readonly outBias?: TensorLike | undefined;
}

/** Configuration of {@link Multihead.multiHeadAttention}. */
export interface MultiHeadAttentionConfig {
  /** Width of a token. */
  readonly embedDim: number;
  readonly numHeads: number;
  /** Width of one head. Default embedDim / numHeads, which must then divide evenly. */
  readonly headDim?: number | undefined;
  /** Copied into the layer: what is given here may be disposed or changed afterwards. */
  readonly weights: MultiHeadAttentionWeights;
}

/**
 * Names of the steps of a forward pass, in the order of computation:
 * `x` (B, N, embedDim) · `q`, `k`, `v` (B, N, H·headDim) · `qHeads`, `kHeads`, `vHeads`, after QK-norm and RoPE,
 * (B, H, N, headDim) · `scores` (B, H, N, N), raw Q·Kᵀ · `scaledScores` · `maskedScores`,
 * −Infinity where hidden · `weights` · `headsOut` (B, H, N, headDim) · `merged` (B, N, H·headDim) ·
 * `output`.
 */
export type TraceName =
  | 'x'
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
  | 'headsOut'
  | 'merged'
  | 'output';

/** One step of a forward pass: a copy on the JavaScript heap, nothing to dispose. */
export interface TraceStep<N extends TraceName = TraceName> {
  readonly name: N;
  readonly shape: number[];
  readonly data: Float32Array;
}

/** What `trace` may be: everything, nothing, or the steps of these names. */
export type TraceOption = boolean | readonly TraceName[];

/** The steps that a {@link TraceOption} asks for, by name and in the order of computation. */
export type TraceOf<T extends TraceOption> = T extends true
  ? { readonly [N in TraceName]: TraceStep<N> }
  : T extends readonly TraceName[]
    ? { readonly [N in T[number]]: TraceStep<N> }
    : undefined;

/** Options of {@link MultiHeadAttention.forward}. */
export interface ForwardOptions<T extends TraceOption = TraceOption> extends MaskOptions {
  /** Which steps to copy out. Default `false`. It does not change the output. */
  readonly trace?: T | undefined;
}

/** Result of {@link MultiHeadAttention.forward}. */
export interface ForwardResult<T extends TraceOption = false> {
  /** (B, N, embedDim), or (B, N, numHeads·headDim) for a layer without `outProj`. The caller disposes it. */
  readonly output: Tensor;
  /** `undefined` unless asked for. */
  readonly trace: TraceOf<T>;
}

/** Multi-head self-attention with its weights: project, split into heads, attend, merge, project. */
export interface MultiHeadAttention {
  readonly embedDim: number;
  readonly numHeads: number;
  readonly headDim: number;
  readonly disposed: boolean;
  /**
   * Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2. The scale defaults to 1/√headDim.
   *
   * @param x (B, N, embedDim)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  forward<const T extends TraceOption = false>(
    x: TensorLike,
    options?: ForwardOptions<T>,
  ): ForwardResult<T>;
  /** Frees the weights. A second call does nothing. */
  dispose(): void;
  [Symbol.dispose](): void;
}
