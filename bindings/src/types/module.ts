// The multi-head attention module and its cache.

import type { MaskOptions, ModelOptions, RopeRotation, Window } from './attention.js';
import type { ModuleGradients } from './backward.js';
import type { KVCache, KVCacheConfig } from './cache.js';
import type { DisposableObject, DisposableResult, Filled, FloatTensorLike, PlainTensor, Tensor, TensorLike } from './tensor.js';
import type { TraceOf, TraceOption } from './trace.js';

/** Tensors by name, as `torch.nn.Module.state_dict()` returns them. */
export type StateDict<T = FloatTensorLike> = Readonly<Record<string, T>>;

/**
 * Configuration of {@link Multihead.multiHeadAttention}: the arguments of `torch.nn.MultiheadAttention` with the same
 * defaults, except `batchFirst`, and the options of attention that belong to a model. A call overrides an option that
 * it gives under the same name.
 */
export interface MultiHeadAttentionConfig extends ModelOptions {
  /** Width of a query token. */
  readonly embedDim: number;
  /** Number of query heads. */
  readonly numHeads: number;
  /** Head dim of queries and keys. Default embedDim / numHeads, which must then be a whole number. */
  readonly headDim?: number | undefined;
  /**
   * Number of key/value heads (grouped-query attention, arXiv:2305.13245); it must divide `numHeads`.
   * Default `numHeads`.
   */
  readonly numKvHeads?: number | undefined;
  /** Head dim of values. Default `headDim`; with `kvLatentDim`, `headDim` − `ropeHeadDim`. */
  readonly valueDim?: number | undefined;
  /** Width of a key token. Default `embedDim`. */
  readonly kdim?: number | undefined;
  /** Width of a value token. Default `embedDim`. */
  readonly vdim?: number | undefined;
  /** Width of an output token, only with `outProj`. Default `embedDim`. */
  readonly outDim?: number | undefined;
  /** True if the four projections have biases. Default true. */
  readonly bias?: boolean | undefined;
  /** True if there is an output projection. Without one, the output is the merged heads. Default true. */
  readonly outProj?: boolean | undefined;
  /** Appends the parameters bias_k and bias_v as a key and value that all queries see. Default false. */
  readonly addBiasKv?: boolean | undefined;
  /** Appends a key and a value of zeros that all queries see. Default false. */
  readonly addZeroAttn?: boolean | undefined;
  /** True: tokens are (B, N, width). False: (N, B, width). Default true. */
  readonly batchFirst?: boolean | undefined;

  /** Adds the parameter `sinks`, a logit per head: see {@link MaskOptions.sinks}. Default false. */
  readonly sinks?: boolean | undefined;
  /** Adds the parameters `q_norm.weight` and `k_norm.weight`: see {@link MaskOptions.qkNorm}. Default false. */
  readonly qkNorm?: boolean | undefined;
  /** A finite number ≥ 0, only with `qkNorm`. Default 1e−6. */
  readonly qkNormEps?: number | undefined;
  /** See {@link MaskOptions.window}; the call gives the alignment. Default none. */
  readonly window?: Omit<Window, 'align'> | undefined;
  /** See {@link MaskOptions.rope}; the call gives the positions. Default none. */
  readonly rope?: RopeRotation | undefined;
  /** Probability of dropout, 0 ≤ p < 1, used only by calls with `training: true`. Default 0. */
  readonly dropout?: number | undefined;
  /**
   * Probability of dropout of the module's output, after the output projection, 0 ≤ p < 1, used only by
   * calls with `training: true`. Default 0.
   */
  readonly outDropout?: number | undefined;

  /**
   * Selects multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1). The value is the width of
   * the latent from which the keys and values of all heads are computed; a cache holds this latent. Parameters have
   * DeepSeek's names: see {@link MultiHeadAttention.loadStateDict}. Excludes `kdim`, `vdim`, `numKvHeads` < `numHeads`,
   * `addBiasKv`, `addZeroAttn` and `qkNorm`. Default 0: no latent.
   */
  readonly kvLatentDim?: number | undefined;
  /** Width of the latent from which queries are computed. Default 0: queries are computed from the tokens. */
  readonly qLatentDim?: number | undefined;
  /** Width of the part of `headDim` that has RoPE; all heads share it in K. Default 0. */
  readonly ropeHeadDim?: number | undefined;
  /** Epsilon of the RMS norms of both latents; a finite number ≥ 0. Default 1e−6. */
  readonly latentNormEps?: number | undefined;
}

/** Interventions on heads, for teaching and for experiments on a model. */
export interface HeadTools {
  /**
   * (H): factor on the output of each head; 0 mutes the head. In a transformer also (numLayers · H), the
   * heads of the first layer first. Default 1 everywhere.
   */
  readonly scales?: Float32Array | undefined;
  /** Skips the output projection: the output is the merged heads. Default false. */
  readonly skipOutProj?: boolean | undefined;
  /** Divides the scale by this finite number > 0. Default 1. */
  readonly temperature?: number | undefined;
  /** Uses 1/√embedDim as the default scale, which is a common mistake, to show its effect. Default false. */
  readonly scaleByEmbedDim?: boolean | undefined;
}

/**
 * Optional results of a module. N counts all keys, including keys that the module appends. Results of an unbatched call
 * have no axis B.
 * - `'weights'` (B, H, N_q, N): the softmax before dropout; 0 for hidden keys
 * - `'meanWeights'` (B, N_q, N): the mean of the weights over the heads, PyTorch's `average_attn_weights`
 */
export type ModuleReturn = 'weights' | 'meanWeights';

/** The options that {@link MultiHeadAttention.forward} and {@link MultiHeadAttention.step} share. */
export interface ModuleOptions<R extends readonly ModuleReturn[] = readonly ModuleReturn[], T extends TraceOption = TraceOption> {
  /** Results besides `output`. Default none. `'weights'` has N_q × N elements per head. */
  readonly return?: R | undefined;
  /** Which steps to copy out. Default `false`. A trace does not change the output. */
  readonly trace?: T | undefined;
  /** Tensor to write to, returned as `output`. It must not be one of the inputs. Default a new one. */
  readonly out?: Tensor | undefined;
  /**
   * Applies the module's `dropout`, unless the call gives its own, and the dropout of outputs, residuals
   * and embeddings. Default false.
   */
  readonly training?: boolean | undefined;
  /** Seed of all dropout of the module: see {@link Dropout.seed}. Default 0. */
  readonly dropoutSeed?: number | bigint | undefined;
  /** Interventions on heads. Default none. */
  readonly heads?: HeadTools | undefined;
}

/**
 * Options of {@link MultiHeadAttention.forward}. Masks and biases cover only the keys that the caller gives; keys that
 * the module appends are visible to every query. `mask` is true where a query MAY attend. PyTorch's masks mean the
 * opposite; pass them as `attnMaskBlocked` and `keyPaddingBlocked`.
 */
export interface ForwardOptions<R extends readonly ModuleReturn[] = readonly ModuleReturn[], T extends TraceOption = TraceOption>
  extends MaskOptions, ModuleOptions<R, T> {
  /**
   * `attn_mask` of `nn.MultiheadAttention`: true = may NOT attend. (N_q, N_k); (B, H, N_q, N_k), where
   * an extent of 1 is shared along its axis; or PyTorch's (B · H, N_q, N_k). Default none.
   */
  readonly attnMaskBlocked?: TensorLike<'bool'> | undefined;
  /** `key_padding_mask`: true = no query may attend to it. (B, N_k), unbatched (N_k). Default none. */
  readonly keyPaddingBlocked?: TensorLike<'bool'> | undefined;
  /** (B, N_k), unbatched (N_k), added to the scores; −Infinity hides a key. Default none. */
  readonly keyPaddingBias?: TensorLike | undefined;
}

/**
 * Options of {@link MultiHeadAttention.step}. The keys of `mask` and `bias` are all tokens so far,
 * including the new ones.
 */
export interface StepOptions<R extends readonly ModuleReturn[] = readonly ModuleReturn[], T extends TraceOption = TraceOption>
  extends Omit<MaskOptions, 'causal' | 'window' | 'kvLengths' | 'rope'>, ModuleOptions<R, T> {}

/** Options of {@link MultiHeadAttention.backward}: the options of the forward() call. */
export type ModuleBackwardOptions = Omit<ForwardOptions, 'return' | 'trace' | 'out'>;

/** The tensor of each {@link ModuleReturn}. */
export interface ModuleTensors {
  /** (B, H, N_q, N_k), before dropout; appended keys are the last ones. */
  readonly weights: Tensor;
  /** The mean of the weights over the heads, (B, N_q, N_k). */
  readonly meanWeights: Tensor;
}

/**
 * Result of {@link MultiHeadAttention.forward} and {@link MultiHeadAttention.step}. The caller disposes its
 * tensors, or the whole result with `using`.
 */
export type ModuleResult<R extends readonly ModuleReturn[] = [], T extends TraceOption = false> = {
  /** The query's shape with last extent `outDim`; numHeads · valueDim without an output projection. */
  readonly output: Tensor;
  /** `undefined` without the option `trace`. */
  readonly trace: TraceOf<T>;
} & (number extends R['length'] ? Partial<Pick<ModuleTensors, R[number]>> : Pick<ModuleTensors, R[number]>) &
  DisposableResult;

/** Queries, keys and values of cross-attention. */
export interface ModuleInputs {
  /** (B, N_q, embedDim) */
  readonly query: TensorLike;
  /** (B, N_k, kdim). Default the query. */
  readonly key?: TensorLike | undefined;
  /** (B, N_k, vdim). Default the key. */
  readonly value?: TensorLike | undefined;
}

/**
 * Configuration of {@link MultiHeadAttention.createCache}: like {@link Multihead.createCache}, without heads and head
 * dims, which the module knows.
 */
export type ModuleCacheConfig = Omit<KVCacheConfig, 'numKvHeads' | 'headDim' | 'valueDim'>;

/** The KV cache of a module. All batch entries have the same length. */
export interface MultiHeadAttentionCache extends DisposableObject, Pick<KVCache, 'batch' | 'capacity' | 'layout' | 'dtype' | 'bytes'> {
  /**
   * Number of tokens of each entry; in a ring, overwritten tokens count too.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  length(): number;
  /**
   * Truncates every batch entry to its first `length` tokens. In a ring, overwritten tokens are lost:
   * `length` must be 0 or at least the index of the first token that is still kept.
   *
   * @throws {MultiheadError} `E_OPTION` for a `length` out of range, `E_DISPOSED`
   */
  truncate(length: number): void;
}

/** Modules, transformer blocks and transformers have these members. */
export interface ParameterModule extends DisposableObject {
  /**
   * Copies of the parameters as 32-bit floats, under the names and in the layout that they were loaded with.
   *
   * @throws {MultiheadError} `E_OPTION` before loadStateDict() or initialize(); `E_DISPOSED`
   */
  stateDict(): Record<string, PlainTensor>;
  /**
   * Makes an empty cache for step() of this module; the cache of a transformer holds the keys and values of every layer.
   * Dispose it like a tensor.
   *
   * @throws {MultiheadError} `E_OPTION`, also if the module appends keys, if `kdim` or `vdim` is not
   * embedDim, or if a ring cannot hold the module's window; `E_DISPOSED`; `E_MEMORY`
   */
  createCache(config: ModuleCacheConfig): MultiHeadAttentionCache;
}

/**
 * The multi-head attention module: project, split into heads, attend, merge, project (Vaswani et al.
 * 2017, arXiv:1706.03762, section 3.2.2). Its parameters and options are those of
 * `torch.nn.MultiheadAttention`, with three differences: batch-first is the default; `causal` always
 * applies, whereas PyTorch's `is_causal` is a hint; a query that sees no key has merged heads of 0,
 * never NaN.
 */
export interface MultiHeadAttention extends ParameterModule {
  /** The configuration, with every default filled in. */
  readonly config: Filled<MultiHeadAttentionConfig, 'window' | 'rope'>;
  /**
   * Copies all parameters. Rows of weights are outputs, y = x·Wᵀ + b; rows h·headDim to
   * (h + 1)·headDim − 1 of a projection belong to head h. Names and shapes:
   *
   * `in_proj_weight`, the rows of q, k and v stacked, (rows, embedDim), or instead of it
   * `q_proj_weight`, `k_proj_weight` and `v_proj_weight`, which are required if `kdim` or `vdim` is not
   * embedDim · `in_proj_bias`, likewise stacked · `bias_k`, `bias_v` (1, 1, width) · `out_proj.weight`
   * (outDim, numHeads · valueDim), `out_proj.bias` · `sinks` (numHeads) · `q_norm.weight`,
   * `k_norm.weight` (headDim)
   *
   * With `kvLatentDim`, DeepSeek's: `q_proj.weight`, or with `qLatentDim` `q_a_proj.weight`,
   * `q_a_layernorm.weight` and `q_b_proj.weight` · `kv_a_proj_with_mqa.weight`,
   * `kv_a_layernorm.weight`, `kv_b_proj.weight` · `o_proj.weight`; with `bias` also `q_a_proj.bias`,
   * `kv_a_proj_with_mqa.bias` and `o_proj.bias`.
   *
   * @throws {MultiheadError} `E_SHAPE`, one error that names every missing, unexpected and misshaped
   * tensor; `E_OPTION` for a value that is not a tensor of floats; `E_DISPOSED`; `E_MEMORY`. A call that
   * throws leaves the parameters unchanged.
   */
  loadStateDict(dict: StateDict): void;

  /**
   * One forward pass. The scale defaults to 1/√headDim.
   *
   * @param query (B, N_q, embedDim), with `batchFirst: false` (N_q, B, embedDim), or unbatched
   * (N_q, embedDim), for self-attention; for cross-attention an object with a query, key and value.
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  forward<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    query: TensorLike | ModuleInputs,
    options?: ForwardOptions<R, T>,
  ): ModuleResult<R, T>;

  /**
   * Computes the gradients of a loss, given its gradient `dOut` with respect to the output of forward(). All other
   * arguments must equal the arguments of the forward() call, which is computed again, with dropout from its seed.
   * Hidden keys and values contribute nothing and have gradient 0. Gradients are bit-identical in every run.
   *
   * @param dOut the shape of the output
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  backward(query: TensorLike | ModuleInputs, dOut: TensorLike, options?: ModuleBackwardOptions): ModuleGradients;

  /**
   * Causal self-attention for the next n tokens, which are appended to the cache. The output equals the last n rows of
   * a causal forward() over all tokens so far.
   *
   * @param x (B, n, embedDim), with `batchFirst: false` (n, B, embedDim), or unbatched (n, embedDim)
   * @throws {MultiheadError} `E_SHAPE`; `E_OPTION`, also for the cache of another module, for a cache whose tokens older
   * weights computed, and if the cache's capacity is exceeded; `E_DISPOSED`; `E_MEMORY`. A call that throws leaves the
   * cache unchanged.
   */
  step<const R extends readonly ModuleReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: MultiHeadAttentionCache,
    options?: StepOptions<R, T>,
  ): ModuleResult<R, T>;
}
