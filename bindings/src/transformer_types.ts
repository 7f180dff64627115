// Transformer blocks, and stacks of them from tokens to logits.

import type {
  ForwardOptions,
  LayerCacheConfig,
  MultiHeadAttentionCache,
  MultiHeadAttentionConfig,
  StateDict,
  StepOptions,
  TraceOf,
  TraceOption,
} from './layer_types.js';
import type { PlainTensor, Tensor, TensorLike } from './tensor_types.js';

/**
 * What an MLP applies to each element: `'relu'` max(x, 0) · `'gelu'` x·Φ(x) (arXiv:1606.08415) ·
 * `'geluTanh'` x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))), GPT-2's · `'silu'` x / (1 + e^−x)
 */
export type Activation = 'relu' | 'gelu' | 'geluTanh' | 'silu';

/** `'layerNorm'` (arXiv:1607.06450), `'rmsNorm'` (arXiv:1910.07467, without a bias), or neither. */
export type Norm = 'none' | 'layerNorm' | 'rmsNorm';

/**
 * Under which names parameters are loaded.
 *
 * - `'torch'`: those of `torch.nn.TransformerEncoderLayer`: `self_attn.` and what
 *   {@link MultiHeadAttention.loadStateDict} names, `linear1`, `linear2`, `norm1`, `norm2`, each with
 *   `.weight` and `.bias`; here also `linear_gate`. A stack has them under `layers.N.`, and
 *   `embedding.weight`, `position.weight`, `norm.weight`, `norm.bias`, `output.weight`.
 * - `'gpt2'`: GPT-2's own: `h.N.` and `ln_1`, `attn.c_attn`, `attn.c_proj`, `ln_2`, `mlp.c_fc`,
 *   `mlp.c_proj`; `wte`, `wpe`, `ln_f`; and `lm_head`; with or without `transformer.` in front.
 *   Matrices are (in, out), as its Conv1D has them. The buffers `attn.bias` and `attn.masked_bias` are
 *   ignored.
 *
 * With `tiedOutput`, the output's matrix is ignored under both.
 */
export type ParameterNames = 'torch' | 'gpt2';

/**
 * Configuration of {@link Multihead.transformerBlock}: that of its attention, its norms and its MLP.
 */
export interface TransformerBlockConfig extends Omit<
  MultiHeadAttentionConfig,
  'kdim' | 'vdim' | 'outDim' | 'batchFirst'
> {
  /** Hidden width of the MLP. Default none: a block without an MLP. */
  readonly mlpDim?: number | undefined;
  /** Default `'gelu'`. */
  readonly activation?: Activation | undefined;
  /** linear2(activation(linear_gate(x)) · linear1(x)), SwiGLU with `'silu'` (arXiv:2002.05202). Default false. */
  readonly gated?: boolean | undefined;
  /** Whether the MLP's projections have biases. Default true. */
  readonly mlpBias?: boolean | undefined;
  /** Default `'layerNorm'`. */
  readonly norm?: Norm | undefined;
  /**
   * True: x + attention(norm1(x)), and likewise the MLP (GPT-2, Llama). False: norm1(x + attention(x))
   * (Vaswani et al. 2017). Default true.
   */
  readonly normFirst?: boolean | undefined;
  /** A finite number ≥ 0. Default 1e−5. */
  readonly normEps?: number | undefined;
}

/** Configuration of {@link Multihead.transformer}. */
export interface TransformerConfig extends TransformerBlockConfig {
  readonly numLayers: number;
  readonly vocabSize: number;
  /** Number of learned position embeddings, which is the longest sequence. Default none. */
  readonly maxPositions?: number | undefined;
  /** A norm after the last block, if the blocks have norms. Default true. */
  readonly finalNorm?: boolean | undefined;
  /** The output uses the matrix of the embedding. Default false. */
  readonly tiedOutput?: boolean | undefined;
  /** Every token sees only itself and earlier tokens. Default true. */
  readonly causal?: boolean | undefined;
}

/** Every option with its default filled in; options without a default may be undefined. */
type Filled<C, Open extends keyof C> = {
  readonly [N in keyof C]-?: N extends Open ? C[N] : Exclude<C[N], undefined>;
};

/** Tensors that {@link TransformerBlock.forward} can give beside its output. */
export type BlockReturn = 'attentionOut';

/** Options of {@link TransformerBlock.forward}: those of {@link MultiHeadAttention.forward}. */
export interface BlockOptions<
  R extends readonly BlockReturn[] = readonly BlockReturn[],
  T extends TraceOption = TraceOption,
> extends Omit<ForwardOptions<[], T>, 'return'> {
  /** `'attentionOut'` (B, N, embedDim): what attention adds to its input. Default none. */
  readonly return?: R | undefined;
}

/** Options of {@link TransformerBlock.step}: those of {@link MultiHeadAttention.step}. */
export interface BlockStepOptions<
  R extends readonly BlockReturn[] = readonly BlockReturn[],
  T extends TraceOption = TraceOption,
> extends Omit<StepOptions<[], T>, 'return'> {
  /** As in {@link BlockOptions}. */
  readonly return?: R | undefined;
}

/** Result of {@link TransformerBlock.forward} and {@link TransformerBlock.step}. The caller disposes its tensors. */
export type BlockResult<R extends readonly BlockReturn[] = [], T extends TraceOption = false> = {
  /** (B, N, embedDim) */
  readonly output: Tensor;
  /** Of the attention; `undefined` unless asked for. */
  readonly trace: TraceOf<T>;
} & (number extends R['length']
  ? { readonly [N in R[number]]?: Tensor }
  : { readonly [N in R[number]]: Tensor });

/**
 * A transformer block: attention and an MLP, each added to what went in. With `normFirst`,
 * a = x + attention(norm1(x)) and out = a + mlp(norm2(a)); without, a = norm1(x + attention(x)) and
 * out = norm2(a + mlp(a)). The MLP is linear2(activation(linear1(x))).
 */
export interface TransformerBlock {
  /** What was given, with every default filled in. */
  readonly config: Filled<TransformerBlockConfig, 'window' | 'rope' | 'mlpDim'>;
  readonly disposed: boolean;
  /**
   * Copies all parameters.
   *
   * @throws {MultiheadError} `E_SHAPE`, one that names every missing, unexpected and misshaped tensor;
   * `E_OPTION` for what is no tensor of floats; `E_DISPOSED`; `E_MEMORY`. The parameters are what they
   * were then.
   */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions): void;
  /**
   * Copies of what was loaded, under the names and in the layout that it came in, as 32-bit floats.
   *
   * @throws {MultiheadError} `E_OPTION` before {@link TransformerBlock.loadStateDict}; `E_DISPOSED`
   */
  stateDict(): Record<string, PlainTensor>;
  /**
   * @param x (B, N, embedDim)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`. A refused call leaves
   * nothing allocated.
   */
  forward<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    options?: BlockOptions<R, T>,
  ): BlockResult<R, T>;
  /** As {@link MultiHeadAttention.createCache}. */
  createCache(config: LayerCacheConfig): MultiHeadAttentionCache;
  /**
   * The next tokens, causally. Gives the rows that one causal forward() over all tokens so far would
   * give for them.
   *
   * @param x (B, n, embedDim)
   * @throws {MultiheadError} as {@link MultiHeadAttention.step}. The cache is what it was then.
   */
  step<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: MultiHeadAttentionCache,
    options?: BlockStepOptions<R, T>,
  ): BlockResult<R, T>;
  /** Frees the parameters. A second call does nothing. */
  dispose(): void;
  [Symbol.dispose](): void;
}

/** Options of `loadStateDict()` of blocks and stacks. */
export interface LoadStateDictOptions {
  /** Default `'torch'`. */
  readonly names?: ParameterNames | undefined;
}

/**
 * Results of a stack.
 *
 * - `'logits'` (B, N, vocabSize)
 * - `'hidden'` (numLayers, B, N, embedDim): after each layer, before the final norm
 */
export type TransformerReturn = 'logits' | 'hidden';

/** What {@link Transformer.forward} and {@link Transformer.step} share. */
interface ModelOptions<R extends readonly TransformerReturn[], T extends TraceOption> {
  /** Default `['logits']`. With `[]` nothing after the last layer is computed, which saves time on a prompt. */
  readonly return?: R | undefined;
  /** Which steps of every layer's attention to copy out. Default `false`. */
  readonly trace?: T | undefined;
  /** Written to instead of a new tensor, and returned as `logits`. */
  readonly out?: Tensor | undefined;
}

/** Options of {@link Transformer.forward}: those of a layer, applied in every layer. */
export interface TransformerOptions<
  R extends readonly TransformerReturn[] = readonly TransformerReturn[],
  T extends TraceOption = TraceOption,
>
  extends Omit<ForwardOptions, 'causal' | 'return' | 'trace' | 'out'>, ModelOptions<R, T> {
  /** Number of sequences in `tokens`, one after the other and of equal length. Default 1. */
  readonly batch?: number | undefined;
}

/** Options of {@link Transformer.step}: those of a layer, applied in every layer. */
export interface TransformerStepOptions<
  R extends readonly TransformerReturn[] = readonly TransformerReturn[],
  T extends TraceOption = TraceOption,
>
  extends Omit<StepOptions, 'return' | 'trace' | 'out'>, ModelOptions<R, T> {}

/** Result of {@link Transformer.forward} and {@link Transformer.step}. The caller disposes its tensors. */
export type TransformerResult<
  R extends readonly TransformerReturn[] = ['logits'],
  T extends TraceOption = false,
> = {
  /** Of each layer's attention; `undefined` unless asked for. */
  readonly traces: T extends false ? undefined : TraceOf<T>[];
} & (number extends R['length']
  ? { readonly [N in R[number]]?: Tensor }
  : { readonly [N in R[number]]: Tensor });

/**
 * A language model: embeddings, blocks, a final norm, and a matrix to logits. With
 * `normFirst`, learned positions, `geluTanh` and a tied output it is GPT-2; with RoPE, `rmsNorm` and a
 * gated MLP without biases a Llama.
 */
export interface Transformer {
  /** What was given, with every default filled in. */
  readonly config: Filled<TransformerConfig, 'window' | 'rope' | 'mlpDim' | 'maxPositions'>;
  readonly disposed: boolean;
  /** As {@link TransformerBlock.loadStateDict}, over all layers. */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions): void;
  /** As {@link TransformerBlock.stateDict}. */
  stateDict(): Record<string, PlainTensor>;
  /**
   * One pass over whole sequences.
   *
   * @param tokens (batch · N), row-major, each from 0 to vocabSize − 1
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION` (also for more tokens than `maxPositions`),
   * `E_DISPOSED`, `E_MEMORY`. A refused call leaves nothing allocated.
   */
  forward<
    const R extends readonly TransformerReturn[] = ['logits'],
    const T extends TraceOption = false,
  >(
    tokens: Int32Array,
    options?: TransformerOptions<R, T>,
  ): TransformerResult<R, T>;
  /**
   * Makes an empty cache for {@link Transformer.step} of this model, with the keys and values of every
   * layer. Dispose it as a tensor.
   *
   * @throws {MultiheadError} as {@link MultiHeadAttention.createCache}
   */
  createCache(config: LayerCacheConfig): TransformerCache;
  /**
   * The next tokens of every batch entry. Gives the rows that forward() over all tokens so far would
   * give for them.
   *
   * @param tokens (batch · n), row-major
   * @throws {MultiheadError} `E_SHAPE`; `E_OPTION`, also for the cache of another model, steps past
   * its capacity or `maxPositions`, and a model that is not causal; `E_DISPOSED`; `E_MEMORY`. The cache
   * is what it was then.
   */
  step<
    const R extends readonly TransformerReturn[] = ['logits'],
    const T extends TraceOption = false,
  >(
    tokens: Int32Array,
    cache: TransformerCache,
    options?: TransformerStepOptions<R, T>,
  ): TransformerResult<R, T>;
  /** Frees the parameters. A second call does nothing. */
  dispose(): void;
  [Symbol.dispose](): void;
}

/** Keys and values that every layer of a model has seen. */
export type TransformerCache = MultiHeadAttentionCache;
