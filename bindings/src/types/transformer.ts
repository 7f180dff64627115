// Transformer blocks, and transformers from tokens to logits.

import type { BlockGradients } from './backward.js';
import type {
  ForwardOptions,
  ModuleBackwardOptions,
  MultiHeadAttentionCache,
  MultiHeadAttentionConfig,
  ParameterModule,
  StateDict,
  StepOptions,
} from './module.js';
import type { DisposableResult, Filled, Tensor, TensorLike } from './tensor.js';
import type { TraceOf, TraceOption } from './trace.js';

/**
 * Activation function of an MLP: `'relu'` max(x, 0) · `'gelu'` x·Φ(x) (arXiv:1606.08415) · `'geluTanh'`
 * x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))), as in GPT-2 · `'silu'` x / (1 + e^−x)
 */
export type Activation = 'relu' | 'gelu' | 'geluTanh' | 'silu';

/** `'layerNorm'` (arXiv:1607.06450), `'rmsNorm'` (arXiv:1910.07467; it has no bias), or `'none'`. */
export type Norm = 'none' | 'layerNorm' | 'rmsNorm';

/**
 * Naming scheme of the parameters in a state dict.
 * - `'torch'`: names of `torch.nn.TransformerEncoderLayer`: `self_attn.` followed by the names of
 *   {@link MultiHeadAttention.loadStateDict}; `linear1`, `linear2`, `norm1`, `norm2`, each with `.weight` and `.bias`;
 *   and `linear_gate`, which PyTorch lacks. In a transformer these are under `layers.N.`, in addition to
 *   `embedding.weight`, `position.weight`, `norm.weight`, `norm.bias` and `output.weight`.
 * - `'gpt2'`: names of GPT-2: `h.N.` followed by `ln_1`, `attn.c_attn`, `attn.c_proj`, `ln_2`, `mlp.c_fc`,
 *   `mlp.c_proj`; `wte`, `wpe`, `ln_f`; and `lm_head`; all with or without the prefix `transformer.`. Matrices are (in,
 *   out), as in its Conv1D. The buffers `attn.bias` and `attn.masked_bias` are ignored.
 *
 * With `tiedOutput`, both schemes ignore the output's matrix.
 */
export type ParameterNames = 'torch' | 'gpt2';

/** Configuration of {@link Multihead.transformerBlock}: options of its attention, its norms and its MLP. */
export interface TransformerBlockConfig extends Omit<MultiHeadAttentionConfig, 'kdim' | 'vdim' | 'outDim' | 'batchFirst'> {
  /** Hidden width of the MLP. Default: no MLP. */
  readonly mlpDim?: number | undefined;
  /** Default `'gelu'`. */
  readonly activation?: Activation | undefined;
  /**
   * True: the MLP is linear2(activation(linear_gate(x)) · linear1(x)), which with `'silu'` is SwiGLU
   * (arXiv:2002.05202). False: linear2(activation(linear1(x))). Default false.
   */
  readonly gated?: boolean | undefined;
  /** True if the MLP's projections have biases. Default true. */
  readonly mlpBias?: boolean | undefined;
  /** Kind of all norms of the block. Default `'layerNorm'`. */
  readonly norm?: Norm | undefined;
  /**
   * True: x + attention(norm1(x)), and likewise the MLP (GPT-2, Llama). False: norm1(x + attention(x))
   * (Vaswani et al. 2017). Default true.
   */
  readonly normFirst?: boolean | undefined;
  /** Epsilon of the norms, a finite number ≥ 0. Default 1e−5. */
  readonly normEps?: number | undefined;
  /** False: the norms have no parameters (PyTorch's `elementwise_affine`). Default true. */
  readonly normAffine?: boolean | undefined;
  /**
   * Probability of dropout of the outputs of attention and MLP, before they are added (GPT-2's
   * `resid_pdrop`), 0 ≤ p < 1, used only by calls with `training: true`. Default 0.
   */
  readonly residualDropout?: number | undefined;
}

/** Configuration of {@link Multihead.transformer}. */
export interface TransformerConfig extends TransformerBlockConfig {
  /** Number of transformer blocks. */
  readonly numLayers: number;
  /** Number of token ids, and width of the logits of a readout. */
  readonly vocabSize: number;
  /** Number of learned position embeddings, and the length of the longest sequence. Default: no embeddings. */
  readonly maxPositions?: number | undefined;
  /** True: a norm follows the last block, if the blocks have norms. Default true. */
  readonly finalNorm?: boolean | undefined;
  /** True if the output projection is the embedding matrix. Default false. */
  readonly tiedOutput?: boolean | undefined;
  /** True if every token sees only itself and earlier tokens. Default true. */
  readonly causal?: boolean | undefined;
  /**
   * Number of predictions for each position. Each has `vocabSize` rows of `output.weight`. More than 1
   * excludes `tiedOutput`. Default 1.
   */
  readonly numReadouts?: number | undefined;
  /**
   * Probability of dropout of the embeddings (GPT-2's `embd_pdrop`), 0 ≤ p < 1, used only by calls with
   * `training: true`. Default 0.
   */
  readonly embeddingDropout?: number | undefined;
}

/**
 * Options of {@link Transformer.initialize}. Elements of a matrix are normally distributed with standard deviation
 * factor / √columns; matrices of token and position embeddings have embedDim columns. The factors are finite numbers ≥
 * 0. Biases and sinks are 0, gains of norms 1.
 */
export interface InitializeOptions extends LoadStateDictOptions {
  /** A whole number from 0 to 2⁶⁴ − 1, beyond 2⁵³ − 1 a bigint. Default 0. */
  readonly seed?: number | bigint | undefined;
  /** Factor of embeddings of tokens and positions. Default 0.5. */
  readonly embedding?: number | undefined;
  /** Factor of all other matrices, and of appended keys and values. Default 1. */
  readonly weight?: number | undefined;
  /** Factor of matrices whose product is added to the residual stream. Default 0.7. */
  readonly residual?: number | undefined;
  /** Factor of the output's matrix. Default 0.5. */
  readonly output?: number | undefined;
}

/** Tensors that {@link TransformerBlock.forward} can return besides its output. */
export type BlockReturn = 'attentionOut';

/** Options of {@link TransformerBlock.forward}: the same as of {@link MultiHeadAttention.forward}, except `return`. */
export interface BlockOptions<R extends readonly BlockReturn[] = readonly BlockReturn[], T extends TraceOption = TraceOption> extends Omit<
  ForwardOptions<[], T>,
  'return'
> {
  /**
   * `'attentionOut'` (B, N, embedDim): the output of attention, before the residual addition. Default
   * none.
   */
  readonly return?: R | undefined;
}

/** Options of {@link TransformerBlock.step}: the same as of {@link MultiHeadAttention.step}, except `return`. */
export interface BlockStepOptions<R extends readonly BlockReturn[] = readonly BlockReturn[], T extends TraceOption = TraceOption> extends Omit<
  StepOptions<[], T>,
  'return'
> {
  /** See {@link BlockOptions.return}. */
  readonly return?: R | undefined;
}

/**
 * Result of {@link TransformerBlock.forward} and {@link TransformerBlock.step}. The caller disposes its
 * tensors, or the whole result with `using`.
 */
export type BlockResult<R extends readonly BlockReturn[] = [], T extends TraceOption = false> = {
  /** (B, N, embedDim) */
  readonly output: Tensor;
  /** The trace of the attention; `undefined` without the option `trace`. */
  readonly trace: TraceOf<T>;
} & (number extends R['length'] ? { readonly [N in R[number]]?: Tensor } : { readonly [N in R[number]]: Tensor }) &
  DisposableResult;

/**
 * A transformer block: attention and an MLP, each with a residual connection. With `normFirst`,
 * a = x + attention(norm1(x)) and out = a + mlp(norm2(a)); without, a = norm1(x + attention(x)) and
 * out = norm2(a + mlp(a)). The MLP is linear2(activation(linear1(x))), or gated.
 */
export interface TransformerBlock extends ParameterModule {
  /** The configuration, with every default filled in. */
  readonly config: Filled<TransformerBlockConfig, 'window' | 'rope' | 'mlpDim'>;
  /**
   * Copies all parameters. {@link ParameterNames} lists their names.
   *
   * @throws {MultiheadError} as {@link MultiHeadAttention.loadStateDict}
   */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions): void;
  /**
   * One forward pass.
   *
   * @param x (B, N, embedDim)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  forward<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    options?: BlockOptions<R, T>,
  ): BlockResult<R, T>;
  /**
   * The gradients of a loss, given its gradient `dOut` with respect to the output of forward(): see
   * {@link MultiHeadAttention.backward}.
   *
   * @param x (B, N, embedDim)
   * @param dOut (B, N, embedDim)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  backward(x: TensorLike, dOut: TensorLike, options?: ModuleBackwardOptions): BlockGradients;
  /**
   * A causal pass over the next n tokens, which are appended to the cache. The output equals the last n rows of a
   * causal forward() over all tokens so far.
   *
   * @param x (B, n, embedDim)
   * @throws {MultiheadError} as {@link MultiHeadAttention.step}. A call that throws leaves the cache unchanged.
   */
  step<const R extends readonly BlockReturn[] = [], const T extends TraceOption = false>(
    x: TensorLike,
    cache: MultiHeadAttentionCache,
    options?: BlockStepOptions<R, T>,
  ): BlockResult<R, T>;
}

/** Options of `loadStateDict()` of transformer blocks and transformers. */
export interface LoadStateDictOptions {
  /** Naming scheme of the dict. Default `'torch'`. */
  readonly names?: ParameterNames | undefined;
}

/**
 * Results of a transformer.
 *
 * - `'logits'` (B, N, numReadouts · vocabSize)
 * - `'hidden'` (numLayers, B, N, embedDim): after each layer, before the final norm
 */
export type TransformerReturn = 'logits' | 'hidden';

/** The options that {@link Transformer.forward} and {@link Transformer.step} share. */
interface ModelOptions<R extends readonly TransformerReturn[], T extends TraceOption> {
  /**
   * Which results to compute. Default `['logits']`. Without `'logits'`, the final norm and the output
   * projection are skipped, which saves time on a prompt.
   */
  readonly return?: R | undefined;
  /** Which steps of every layer's attention to copy out. Default `false`. */
  readonly trace?: T | undefined;
  /** Tensor to write to, returned as `logits`. Default a new one. */
  readonly out?: Tensor | undefined;
}

/** Options of {@link Transformer.forward}: options of the attention module, applied in every layer. */
export interface TransformerOptions<R extends readonly TransformerReturn[] = readonly TransformerReturn[], T extends TraceOption = TraceOption>
  extends Omit<ForwardOptions, 'causal' | 'return' | 'trace' | 'out'>, ModelOptions<R, T> {
  /** Number of sequences of equal length in `tokens`, one after the other. Default 1. */
  readonly batch?: number | undefined;
}

/** Options of {@link Transformer.step}: options of the attention module, applied in every layer. */
export interface TransformerStepOptions<R extends readonly TransformerReturn[] = readonly TransformerReturn[], T extends TraceOption = TraceOption>
  extends Omit<StepOptions, 'return' | 'trace' | 'out'>, ModelOptions<R, T> {}

/**
 * Result of {@link Transformer.forward} and {@link Transformer.step}. The caller disposes its
 * tensors, or the whole result with `using`.
 */
export type TransformerResult<R extends readonly TransformerReturn[] = ['logits'], T extends TraceOption = false> = {
  /** The trace of each layer's attention; `undefined` without the option `trace`. */
  readonly traces: T extends false ? undefined : TraceOf<T>[];
} & (number extends R['length'] ? { readonly [N in R[number]]?: Tensor } : { readonly [N in R[number]]: Tensor }) &
  DisposableResult;

/**
 * A transformer language model: embeddings, blocks, a final norm, and an output projection to logits.
 * With `normFirst`, learned positions, `geluTanh` and a tied output it is GPT-2; with RoPE, `rmsNorm`
 * and a gated MLP without biases it is Llama.
 */
export interface Transformer extends ParameterModule {
  /** The configuration, with every default filled in. */
  readonly config: Filled<TransformerConfig, 'window' | 'rope' | 'mlpDim' | 'maxPositions'>;
  /** Like {@link TransformerBlock.loadStateDict}, for the whole model. */
  loadStateDict(dict: StateDict, options?: LoadStateDictOptions): void;
  /**
   * Makes new parameters instead of loading some: the same bits for the same seed, in every build.
   *
   * @throws {MultiheadError} `E_OPTION`, `E_DISPOSED`, `E_MEMORY`. A call that throws leaves the
   * parameters unchanged.
   */
  initialize(options?: InitializeOptions): void;
  /**
   * One forward pass over whole sequences.
   *
   * @param tokens (batch · N) token ids, row-major, each from 0 to vocabSize − 1
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION` (also for sequences longer than `maxPositions`),
   * `E_DISPOSED`, `E_MEMORY`
   */
  forward<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    options?: TransformerOptions<R, T>,
  ): TransformerResult<R, T>;
  /**
   * A pass over the next n tokens of every batch entry, which are appended to the cache. The results
   * equal the last n rows of forward() over all tokens so far.
   *
   * @param tokens (batch · n) token ids, row-major
   * @throws {MultiheadError} `E_SHAPE`; `E_OPTION`, also for the cache of another model, for more tokens
   * than its capacity or `maxPositions`, and for a model with `causal: false`; `E_DISPOSED`; `E_MEMORY`.
   * A call that throws leaves the cache unchanged.
   */
  step<const R extends readonly TransformerReturn[] = ['logits'], const T extends TraceOption = false>(
    tokens: Int32Array,
    cache: TransformerCache,
    options?: TransformerStepOptions<R, T>,
  ): TransformerResult<R, T>;
}

/** The KV cache of all layers of a transformer. */
export type TransformerCache = MultiHeadAttentionCache;
