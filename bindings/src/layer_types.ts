// A multi-head attention layer, its cache, and the trace of its steps.

import type { MaskOptions, RopeRotation, Window } from './attention_types.js';
import type { KVCacheConfig, CacheDType, CacheLayout } from './cache_types.js';
import type { FloatDType, PlainTensor, Tensor, TensorLike } from './tensor_types.js';

/** Tensors by name, as `torch.nn.Module.state_dict()` has them. */
export type StateDict<T = TensorLike<FloatDType>> = Readonly<Record<string, T>>;

/**
 * Configuration of {@link Multihead.multiHeadAttention}: the arguments of
 * `torch.nn.MultiheadAttention` with the same defaults, except `batchFirst`, and options that are fixed
 * for a model. An option of the same name in a call replaces the one given here.
 */
export interface MultiHeadAttentionConfig {
  /** Width of a query token. */
  readonly embedDim: number;
  readonly numHeads: number;
  /** Width of a query and key head. Default embedDim / numHeads, which must then divide evenly. */
  readonly headDim?: number | undefined;
  /** Key and value heads, which divide `numHeads` (arXiv:2305.13245). Default `numHeads`. */
  readonly numKvHeads?: number | undefined;
  /** Width of a value head. Default `headDim`, of a latent layer `headDim` − `ropeHeadDim`. */
  readonly valueDim?: number | undefined;
  /** Width of a key token. Default `embedDim`. */
  readonly kdim?: number | undefined;
  /** Width of a value token. Default `embedDim`. */
  readonly vdim?: number | undefined;
  /** Width of an output token, only with `outProj`. Default `embedDim`. */
  readonly outDim?: number | undefined;
  /** Whether the four projections have biases. Default true. */
  readonly bias?: boolean | undefined;
  /** Whether there is an output projection. Without one, the output is the merged heads. Default true. */
  readonly outProj?: boolean | undefined;
  /** One more key and value, the parameters bias_k and bias_v, visible to all queries. Default false. */
  readonly addBiasKv?: boolean | undefined;
  /** One more key and value, all zeros, visible to all queries. Default false. */
  readonly addZeroAttn?: boolean | undefined;
  /** False: tokens are (N, B, width). Default true, (B, N, width). */
  readonly batchFirst?: boolean | undefined;

  /** A parameter `sinks`, a logit per head: see {@link MaskOptions.sinks}. Default false. */
  readonly sinks?: boolean | undefined;
  /** Parameters `q_norm.weight` and `k_norm.weight`: see {@link MaskOptions.qkNorm}. Default false. */
  readonly qkNorm?: boolean | undefined;
  /** A finite number ≥ 0, only with `qkNorm`. Default 1e−6. */
  readonly qkNormEps?: number | undefined;
  /** See {@link MaskOptions.softcap}. Default 0, none. */
  readonly softcap?: number | undefined;
  /** See {@link MaskOptions.window}; the alignment is that of the call. Default none. */
  readonly window?: Omit<Window, 'align'> | undefined;
  /** See {@link MaskOptions.rope}; the positions are those of the call. Default none. */
  readonly rope?: RopeRotation | undefined;
  /** Probability, 0 ≤ p < 1, read only where a call is `training`. Default 0. */
  readonly dropout?: number | undefined;

  /**
   * Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1): width of the latent
   * that the keys and values of all heads come from, and that a cache holds. Parameters have DeepSeek's
   * names: see {@link MultiHeadAttention.loadStateDict}. Not with `kdim`, `vdim`, fewer `numKvHeads`, `addBiasKv`, `addZeroAttn` or `qkNorm`.
   * Default 0: no latent.
   */
  readonly kvLatentDim?: number | undefined;
  /** Width of the latent that queries come from. Default 0: they come from the tokens. */
  readonly qLatentDim?: number | undefined;
  /** Width of the part of `headDim` that carries RoPE and is shared by the heads of K. Default 0. */
  readonly ropeHeadDim?: number | undefined;
  /** Epsilon of the RMS norms of both latents; a finite number ≥ 0. Default 1e−6. */
  readonly latentNormEps?: number | undefined;
}

/**
 * Names of the steps of a forward pass, in the order of computation. H and H_kv are the numbers of
 * heads; N counts all keys, with those that the layer appends. Shapes are batch-first in every trace,
 * with B = 1 for an unbatched call.
 *
 * `x` (B, N_q, embedDim) · `xKey`, `xValue` (B, N_k, kdim or vdim), in cross-attention only · `q`, `k`,
 * `v` (B, N_q or N_k, heads · width) · `qHeads`, `kHeads`, `vHeads` (B, H or H_kv, N_q or N, width),
 * after QK-norm and RoPE · `scores` (B, H, N_q, N), raw Q·Kᵀ · `scaledScores` · `maskedScores`,
 * −Infinity where hidden · `weights`, before dropout · `headsOut` (B, H, N_q, valueDim) · `merged`
 * (B, N_q, H · valueDim), after {@link HeadTools.scales} · `headShares` (B, H, N_q, outDim), z_h·W_Oʰ,
 * which add up to the output without its bias; only with an output projection · `output` (B, N_q, outDim)
 *
 * A latent layer also has `qLatent` (B, N_q, qLatentDim), if queries have a latent, and `kvLatent`
 * (B, N_k, kvLatentDim), both after their norm, and `kRope` (B, N_k, ropeHeadDim), rotated. In a step it
 * has `latentOut` (B, H, N_q, kvLatentDim) instead of `k` and `v`.
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

/** Steps that not every call has. */
export type ConditionalTraceName =
  | 'xKey'
  | 'xValue'
  | 'qLatent'
  | 'kvLatent'
  | 'kRope'
  | 'latentOut'
  | 'headShares';

/** One step of a forward pass: a copy on the JavaScript heap, nothing to dispose. */
export interface TraceStep<N extends TraceName = TraceName> {
  readonly name: N;
  readonly shape: number[];
  readonly data: Float32Array;
}

/** What `trace` may be: everything, nothing, or the steps of these names. */
export type TraceOption = boolean | readonly TraceName[];

type Traced<N extends TraceName> = {
  readonly [M in Exclude<N, ConditionalTraceName>]: TraceStep<M>;
} & {
  readonly [M in Extract<N, ConditionalTraceName>]?: TraceStep<M>;
};

/** The steps that a {@link TraceOption} asks for, by name and in the order of computation. */
export type TraceOf<T extends TraceOption> = T extends true
  ? Traced<TraceName>
  : T extends readonly TraceName[]
    ? Traced<T[number]>
    : undefined;

/** Changes to what the heads do, for teaching and for experiments on a model. */
export interface HeadTools {
  /** (H): factor on the output of each head; 0 mutes it. Default 1 everywhere. */
  readonly scales?: Float32Array | undefined;
  /** Leaves the output projection out: the output is the merged heads. Default false. */
  readonly skipOutProj?: boolean | undefined;
  /** Divides the scale; a finite number > 0. Default 1. */
  readonly temperature?: number | undefined;
  /** Makes 1/√embedDim the default scale, a common mistake, to show what it does. Default false. */
  readonly scaleByEmbedDim?: boolean | undefined;
}

/**
 * Optional results of a layer. N counts all keys, with those that the layer appends. An unbatched call
 * gives them without the axis B.
 *
 * - `'weights'` (B, H, N_q, N): the softmax before dropout, 0 where hidden
 * - `'meanWeights'` (B, N_q, N): their mean over the heads, PyTorch's `average_attn_weights`
 */
export type LayerReturn = 'weights' | 'meanWeights';

/** What {@link MultiHeadAttention.forward} and {@link MultiHeadAttention.step} share. */
export interface LayerOptions<
  R extends readonly LayerReturn[] = readonly LayerReturn[],
  T extends TraceOption = TraceOption,
> {
  /** Results besides `output`. Default none. They have N_q × N elements a head. */
  readonly return?: R | undefined;
  /** Which steps to copy out. Default `false`. A trace does not change the output. */
  readonly trace?: T | undefined;
  /** Written to instead of a new tensor, and returned as `output`. Not one of the inputs. */
  readonly out?: Tensor | undefined;
  /** Applies the layer's `dropout`, unless the call gives its own. Default false. */
  readonly training?: boolean | undefined;
  /** Seed of the layer's dropout: see {@link Dropout.seed}. Default 0. */
  readonly dropoutSeed?: number | bigint | undefined;
  readonly heads?: HeadTools | undefined;
}

/**
 * Options of {@link MultiHeadAttention.forward}. Masks and biases cover the keys that were given: keys
 * that the layer appends are visible to every query. `mask` is true where a query MAY attend; PyTorch's
 * masks mean the opposite, and are options of their own.
 */
export interface ForwardOptions<
  R extends readonly LayerReturn[] = readonly LayerReturn[],
  T extends TraceOption = TraceOption,
>
  extends MaskOptions, LayerOptions<R, T> {
  /**
   * `attn_mask` of `nn.MultiheadAttention`: true = may NOT attend. (N_q, N_k), (B, H, N_q, N_k) with
   * extents of 1 where shared, or PyTorch's (B · H, N_q, N_k). Default none.
   */
  readonly attnMaskBlocked?: TensorLike<'bool'> | undefined;
  /** `key_padding_mask`: true = may NOT be attended to. (B, N_k), unbatched (N_k). Default none. */
  readonly keyPaddingBlocked?: TensorLike<'bool'> | undefined;
  /** (B, N_k), unbatched (N_k), added to the scores; −Infinity hides a key. Default none. */
  readonly keyPaddingBias?: TensorLike | undefined;
}

/** Options of {@link MultiHeadAttention.step}. `mask` and `bias` cover all tokens so far, with the new ones. */
export interface StepOptions<
  R extends readonly LayerReturn[] = readonly LayerReturn[],
  T extends TraceOption = TraceOption,
>
  extends Omit<MaskOptions, 'causal' | 'window' | 'kvLengths' | 'rope'>, LayerOptions<R, T> {}

/** The tensors behind each {@link LayerReturn}. */
export interface LayerTensors {
  readonly weights: Tensor;
  readonly meanWeights: Tensor;
}

/** Result of {@link MultiHeadAttention.forward} and {@link MultiHeadAttention.step}. The caller disposes its tensors. */
export type LayerResult<R extends readonly LayerReturn[] = [], T extends TraceOption = false> = {
  /** As the query, with width `outDim`; numHeads · valueDim without an output projection. */
  readonly output: Tensor;
  /** `undefined` unless asked for. */
  readonly trace: TraceOf<T>;
} & (number extends R['length']
  ? Partial<Pick<LayerTensors, R[number]>>
  : Pick<LayerTensors, R[number]>);

/** Queries, keys and values of cross-attention. */
export interface LayerInputs {
  /** (B, N_q, embedDim) */
  readonly query: TensorLike;
  /** (B, N_k, kdim). Default the query. */
  readonly key?: TensorLike | undefined;
  /** (B, N_k, vdim). Default the key. */
  readonly value?: TensorLike | undefined;
}

/** Configuration of {@link MultiHeadAttention.createCache}: that of {@link Multihead.createCache} without what the layer decides. */
export type LayerCacheConfig = Omit<KVCacheConfig, 'kvHeads' | 'keyWidth' | 'valueWidth'>;

/** Keys and values that a layer has seen. All entries of the batch have the same length. */
export interface MultiHeadAttentionCache {
  readonly batch: number;
  /** Tokens of one entry. */
  readonly capacity: number;
  readonly layout: CacheLayout;
  readonly dtype: CacheDType;
  /** Its part of {@link MemoryInfo.bytes}. */
  readonly bytes: number;
  /**
   * The number of tokens that it has seen.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  readonly length: number;
  readonly disposed: boolean;
  /**
   * Forgets the tokens from `length` on, 0 for all. In a ring those that were overwritten do not come
   * back: `length` is at least the first one that is still kept.
   *
   * @throws {MultiheadError} `E_OPTION` for more than there is, `E_DISPOSED`
   */
  rewind(length: number): void;
  /** Frees the memory. A second call does nothing. */
  dispose(): void;
  [Symbol.dispose](): void;
}

/**
 * Multi-head attention as a layer: project, split into heads, attend, merge, project (Vaswani et al.
 * 2017, arXiv:1706.03762, section 3.2.2). Its parameters and options are those of
 * `torch.nn.MultiheadAttention`, with three differences: batch-first is the default; `causal` always
 * applies, where `is_causal` is a hint; a query that sees no key has merged heads of 0, never NaN.
 */
export interface MultiHeadAttention {
  /** What was given, with every default filled in. */
  readonly config: {
    readonly [N in keyof MultiHeadAttentionConfig]-?: N extends 'window' | 'rope'
      ? MultiHeadAttentionConfig[N]
      : Exclude<MultiHeadAttentionConfig[N], undefined>;
  };
  readonly disposed: boolean;

  /**
   * Copies all parameters. Rows of weights are outputs, y = x·Wᵀ + b; rows h·headDim to
   * (h + 1)·headDim − 1 of a projection belong to head h. Names and shapes:
   *
   * `in_proj_weight`, the rows of q, k and v stacked, (rows, embedDim), or instead of it
   * `q_proj_weight`, `k_proj_weight` and `v_proj_weight`, which other `kdim` or `vdim` require ·
   * `in_proj_bias`, likewise stacked · `bias_k`, `bias_v` (1, 1, width) · `out_proj.weight`
   * (outDim, numHeads · valueDim), `out_proj.bias` · `sinks` (numHeads) · `q_norm.weight`,
   * `k_norm.weight` (headDim)
   *
   * With `kvLatentDim`, DeepSeek's: `q_proj.weight`, or with `qLatentDim` `q_a_proj.weight`,
   * `q_a_layernorm.weight` and `q_b_proj.weight` · `kv_a_proj_with_mqa.weight`,
   * `kv_a_layernorm.weight`, `kv_b_proj.weight` · `o_proj.weight`; with `bias` also `q_a_proj.bias`,
   * `kv_a_proj_with_mqa.bias` and `o_proj.bias`.
   *
   * @throws {MultiheadError} `E_SHAPE`, one that names every missing, unexpected and misshaped tensor;
   * `E_OPTION` for what is no tensor of floats; `E_DISPOSED`; `E_MEMORY`. The parameters are what they
   * were then.
   */
  loadStateDict(dict: StateDict): void;

  /**
   * Copies of what was loaded, under the names that it came with, as 32-bit floats.
   *
   * @throws {MultiheadError} `E_OPTION` before {@link MultiHeadAttention.loadStateDict}; `E_DISPOSED`
   */
  stateDict(): Record<string, PlainTensor>;

  /**
   * One pass. The scale defaults to 1/√headDim.
   *
   * @param query (B, N_q, embedDim), with `batchFirst: false` (N_q, B, embedDim), or unbatched
   * (N_q, embedDim); or an object with a query, key and value of such shapes. A query alone is key and
   * value too: self-attention.
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`. A refused call leaves
   * nothing allocated.
   */
  forward<const R extends readonly LayerReturn[] = [], const T extends TraceOption = false>(
    query: TensorLike | LayerInputs,
    options?: ForwardOptions<R, T>,
  ): LayerResult<R, T>;

  /**
   * Makes an empty cache for {@link MultiHeadAttention.step} of this layer. Dispose it as a tensor.
   *
   * @throws {MultiheadError} `E_OPTION`, also for a layer with appended keys or with key or value tokens
   * of another width, and for a ring that does not hold the layer's window; `E_DISPOSED`; `E_MEMORY`
   */
  createCache(config: LayerCacheConfig): MultiHeadAttentionCache;

  /**
   * Causal self-attention of the next tokens, one or several. Gives the rows that one causal forward()
   * over all tokens so far would give for them.
   *
   * @param x (B, n, embedDim), with `batchFirst: false` (n, B, embedDim), or unbatched (n, embedDim)
   * @throws {MultiheadError} `E_SHAPE`; `E_OPTION`, also for the cache of another layer and for steps
   * past its capacity; `E_DISPOSED`; `E_MEMORY`. The cache is what it was then.
   */
  step<const R extends readonly LayerReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: MultiHeadAttentionCache,
    options?: StepOptions<R, T>,
  ): LayerResult<R, T>;

  /** Frees the parameters. A second call does nothing. */
  dispose(): void;
  [Symbol.dispose](): void;
}

/** Options of {@link Multihead.headStatistics}. */
export interface HeadStatisticsOptions {
  /** (B · N_k): which token each key is, for `induction`. Default none. */
  readonly tokens?: Int32Array | undefined;
}

/**
 * Statistics of the attention weights, one number for each of the H heads: means over the batch and
 * over the queries that count, 0 if none counts. Query i stands at position i + N_k − N_q.
 */
export interface HeadStatistics {
  /** −Σ w ln w: 0 if one key has all the weight, ln n if n keys have equal weights. */
  readonly entropy: Float32Array;
  /** Weight on the key one before the query's position, of queries that have one. */
  readonly previousToken: Float32Array;
  /** Weight on key 0, of queries that do not stand there. */
  readonly firstToken: Float32Array;
  /**
   * Weight on keys right behind an earlier occurrence of the query's token, of queries that have one
   * (Olsson et al. 2022, arXiv:2209.11895). Only where `tokens` were given.
   */
  readonly induction?: Float32Array;
}
