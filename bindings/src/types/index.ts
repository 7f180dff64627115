// The public types. This file has the operations; the files re-exported below have their arguments
// and results.
//
// Letters in shapes: B batch, H_q query heads, H_kv key/value heads, N_q queries, N_k keys, N tokens,
// d_k head dim of queries and keys, d_v head dim of values.
// Every tensor is row-major without gaps.

import type {
  AttentionOptions,
  AttentionResult,
  AttentionReturn,
  Capture,
  LatentAttentionInputs,
  LatentAttentionOptions,
  PartialAttention,
  RopeRotation,
  ScoreRows,
  ScoresOptions,
  VarlenOptions,
  VarlenResult,
} from './attention.js';
import type {
  AttentionBackwardInputs,
  AttentionBackwardOptions,
  AttentionBackwardResult,
  GradientName,
  VarlenBackwardOptions,
  VarlenBackwardResult,
  VarlenGradientName,
} from './backward.js';
import type { KVCache, KVCacheConfig } from './cache.js';
import type { Gpu, GpuOptions } from './gpu.js';
import type { Backend, LoadOptions } from './load.js';
import type { MultiHeadAttention, MultiHeadAttentionConfig } from './module.js';
import type { PlatformFloat16Array } from './platform.js';
import type { PrepareBackwardOptions, PreparedAttention, PreparedBackward, PrepareOptions } from './prepared.js';
import type {
  DisposableObject,
  DType,
  FloatDType,
  FloatTensorLike,
  NestedNumbers,
  Shape,
  SourceOf,
  Tensor,
  TensorLike,
  TensorOptions,
} from './tensor.js';
import type { Trainer, TrainerOptions } from './trainer.js';
import type { Transformer, TransformerBlock, TransformerBlockConfig, TransformerConfig } from './transformer.js';

export type * from './attention.js';
export type * from './backward.js';
export type * from './cache.js';
export type * from './experiment.js';
export type * from './gpu.js';
export type * from './module.js';
export type * from './load.js';
export type * from './prepared.js';
export type * from './safetensors.js';
export type * from './tensor.js';
export type * from './trace.js';
export type * from './trainer.js';
export type * from './transformer.js';

/**
 * Loads the WebAssembly module.
 *
 * Without `wasm`, `simd` and `integrity`, every call returns the same instance; with one of them, each call makes
 * a new instance with its own memory. After a failed load, and after an `E_FATAL`, the next call loads
 * again and returns a new instance.
 *
 * @throws {MultiheadError} `E_LOAD` with the address and the reason, `E_ABORTED`, `E_OPTION`
 */
export type Load = (options?: LoadOptions) => Promise<Multihead>;

/** Options of {@link Multihead.linear}. */
export interface LinearOptions {
  /** (out). Default none. */
  readonly bias?: TensorLike | undefined;
  /** Tensor to write to and return. It must not be one of the inputs. Default a new one. */
  readonly out?: Tensor | undefined;
}

/** A scope of {@link Multihead.scope} without a function. */
export interface Scope extends DisposableObject {
  /**
   * Excludes values from the scope and gives them to the scope around it, or else to the caller: the value itself, or
   * the values of an array or plain object, and of arrays in it.
   *
   * @returns the value
   * @throws {MultiheadError} `E_DISPOSED`; `E_OPTION` for a proxy of a tensor
   */
  keep<T>(value: T): T;
  /** Disposes everything that was made in the scope and not kept. A second call does nothing. */
  dispose(): void;
}

/** Allocations of one {@link Multihead}, in WebAssembly memory but for `gpu`. Sizes in bytes. */
export interface MemoryInfo {
  /** Number of tensors, modules, caches, trainers, experiments and prepared operations that are not disposed. */
  readonly live: number;
  /** Bytes that these objects hold; memory that {@link Tensor.reshape} or a trainer shares is counted once. */
  readonly bytes: number;
  /** Largest value of `bytes` so far, including temporary copies during a call. */
  readonly peak: number;
  /** Size of the whole WebAssembly memory. It never shrinks. */
  readonly heap: number;
  /** Bytes of GPU memory that tensors and caches of {@link Multihead.gpu} hold. `bytes` and `peak` do not count them. */
  readonly gpu: number;
}

/**
 * The operations of one instance of the WebAssembly module, which has its own memory. All are synchronous. A call that throws, of the
 * instance or of an object that it made, leaves nothing allocated.
 */
export interface Multihead extends DisposableObject {
  /** The build that was loaded, and why it was chosen. */
  readonly backend: Backend;

  /**
   * Makes a tensor of 32-bit floats from a copy of `data`: a `Float32Array`, a `number[]`, or arrays in arrays, up to four
   * levels, as `[[1, 2], [3, 4]]` for shape (2, 2). `shape` is for data without levels; by default these have one axis.
   *
   * @throws {MultiheadError} `E_SHAPE` unless the shape has one to four extents that are whole numbers
   * ≥ 0 and `data` has as many elements as their product, or if arrays of one level differ in length; `E_OPTION` if `data` is
   * not one of these arrays, or not one for this dtype, or if an entry is not a number; `E_MEMORY`.
   */
  tensor(data: Float32Array | NestedNumbers, shape?: Shape, options?: { readonly dtype?: undefined }): Tensor;
  /** Makes a tensor of booleans from a copy of `data`: 0 is false, everything else true. Throws as above. */
  tensor(data: Uint8Array, shape?: Shape, options?: { readonly dtype?: undefined }): Tensor<'bool'>;
  /** Makes an f16 tensor from a copy of `data`, in engines that have this class. Throws as above. */
  tensor(data: PlatformFloat16Array, shape?: Shape, options?: { readonly dtype?: undefined }): Tensor<'f16'>;
  /**
   * Makes a tensor of this dtype from a copy of `data`. For `'f16'` and `'bf16'`, a `Uint16Array` holds the bits, and a
   * `Float32Array` or numbers are rounded to nearest, ties to even. For `'bool'`, 0 is false and every other number true.
   * Throws as above.
   */
  tensor<D extends DType>(data: SourceOf<D>, shape: Shape | undefined, options: TensorOptions<D>): Tensor<D>;
  /**
   * Makes a tensor of zeros, by default of 32-bit floats.
   *
   * @throws {MultiheadError} `E_SHAPE` unless the shape has one to four extents that are whole numbers ≥ 0; `E_OPTION`, `E_MEMORY`.
   */
  zeros<D extends DType = 'f32'>(shape: Shape, options?: Partial<TensorOptions<D>>): Tensor<D>;

  /**
   * Scaled dot-product attention: softmax(scale · Q·Kᵀ + bias, masked) · V, exact.
   *
   * Defined by Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1. Computed in tiles with a running
   * maximum, so extra memory is O(N). {@link MaskOptions} defines the options and the order in which
   * they apply. A query that sees no key has output 0, weights 0 and LSE −Infinity. Hidden keys and
   * values never contribute, not even NaN. Products and sums are in 32 bits.
   *
   * @param q (B, H_q, N_q, d_k)
   * @param k (B, H_kv, N_k, d_k). H_q is a multiple of H_kv; query head h uses key/value head
   * ⌊h / (H_q / H_kv)⌋ (grouped-query attention, arXiv:2305.13245)
   * @param v (B, H_kv, N_k, d_v), of k's dtype
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  attention<const R extends readonly AttentionReturn[] = [], const O extends FloatDType = 'f32', const C extends readonly Capture[] = []>(
    q: FloatTensorLike,
    k: FloatTensorLike,
    v: FloatTensorLike,
    options?: AttentionOptions<R, O, C>,
  ): AttentionResult<R, O, C>;

  /**
   * Computes the gradients of a loss, given its gradient `dOut` with respect to the output of
   * {@link Multihead.attention}. All inputs and options must equal the inputs and options of the attention() call:
   * dropout is computed again from its seed. Hidden keys and values contribute nothing and have gradient 0, even where
   * they are NaN; a query that sees no key has gradient 0. The weights are computed again from `lse`, so extra memory
   * is O(N). Gradients are f32, and bit-identical in every run.
   *
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  attentionBackward<const R extends readonly GradientName[] | undefined = undefined>(
    inputs: AttentionBackwardInputs,
    options?: AttentionBackwardOptions<R>,
  ): AttentionBackwardResult<R>;

  /**
   * Checks and plans a call of {@link Multihead.attention} once, for loops that make it many times. The
   * overhead of `run()` is a fraction of a microsecond.
   *
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  prepare(options: PrepareOptions): PreparedAttention;

  /**
   * Checks and plans a call of {@link Multihead.attentionBackward} once, for training steps of one shape. All options
   * must equal the options of the attention() call.
   *
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  prepareBackward(options: PrepareBackwardOptions): PreparedBackward;

  /**
   * The scores of attention, a few rows at a time, so that no N_q × N_k matrix is ever stored. Takes no
   * values and computes no output. Unknown options throw at once; every other error is thrown when the
   * first rows are requested. Leaving the loop early frees its memory.
   *
   * @param q (B, H_q, N_q, d_k)
   * @param k (B, H_kv, N_k, d_k)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  scores(q: FloatTensorLike, k: FloatTensorLike, options: ScoresOptions): Generator<ScoreRows, void, undefined>;

  /**
   * Attention of packed sequences of different lengths. Each sequence attends only to itself.
   *
   * @param q (T_q, H_q, d_k)
   * @param k (T_k, H_kv, d_k)
   * @param v (T_k, H_kv, d_v), of k's dtype
   * @returns `out` (T_q, H_q, d_v) and, on request, `lse` (H_q, T_q)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  attentionVarlen<const R extends readonly 'lse'[] = [], const O extends FloatDType = 'f32'>(
    q: FloatTensorLike,
    k: FloatTensorLike,
    v: FloatTensorLike,
    options: VarlenOptions<R, O>,
  ): VarlenResult<R, O>;

  /**
   * Computes the gradients of a loss with respect to the inputs of {@link Multihead.attentionVarlen}, like
   * {@link Multihead.attentionBackward}: `dSinks` and the gradients of gains are sums over the sequences.
   *
   * @param inputs q (T_q, H_q, d_k), k (T_k, H_kv, d_k), v (T_k, H_kv, d_v), `out` of that call and `dOut` (T_q, H_q,
   * d_v), and `lse` of that call (H_q, T_q)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  attentionVarlenBackward<const R extends readonly VarlenGradientName[] | undefined = undefined>(
    inputs: AttentionBackwardInputs,
    options: VarlenBackwardOptions<R>,
  ): VarlenBackwardResult<R>;

  /**
   * Merges two results over disjoint sets of keys into `a`: lse = log(e^lseA + e^lseB),
   * out = outA · e^(lseA − lse) + outB · e^(lseB − lse). Exact up to rounding, for any number of parts
   * in any order. Give `sinks` in only one of the parts, or they are counted twice.
   *
   * @param a tensors that are overwritten with the merged result
   * @returns `a`
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  mergeAttention<A extends PartialAttention<Tensor>>(a: A, b: PartialAttention): A;

  /**
   * Slopes of ALiBi (arXiv:2108.12409, section 3): with n the largest power of two ≤ heads,
   * 2^(−8(h + 1)/n) for h < n and 2^(−4(2(h − n) + 1)/n) for the others.
   *
   * @returns (heads)
   * @throws {MultiheadError} `E_OPTION` unless `heads` is a whole number ≥ 1
   */
  alibiSlopes(heads: number): Float32Array;

  /**
   * Rotates x (RoPE, arXiv:2104.09864), for instance before keys are appended to a cache.
   *
   * @param x (B, H, N, d)
   * @param positions (N), shared by the batch, or (B · N) row by row
   * @returns (B, H, N, d)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  rotate(x: TensorLike, positions: Int32Array, rope: RopeRotation): Tensor;

  /**
   * Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values of
   * all heads are computed from one low-rank latent per token; keys also have a part with RoPE that
   * all heads share.
   *
   * @returns `out` (B, H, N_q, d_v) and the results named in `return`
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  latentAttention<const R extends readonly ('lse' | 'weights')[] = []>(
    inputs: LatentAttentionInputs,
    options: LatentAttentionOptions<R>,
  ): AttentionResult<R>;

  /**
   * y = x·Wᵀ + bias, as `torch.nn.functional.linear` defines it.
   *
   * @param x (rows, in), or (…, in) with up to four axes
   * @param weight (out, in)
   * @returns (rows, out), or (…, out)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  linear(x: TensorLike, weight: TensorLike, options?: LinearOptions): Tensor;

  /**
   * Makes a multi-head attention module. {@link MultiHeadAttention.loadStateDict} loads its parameters.
   * Dispose it like a tensor.
   *
   * @throws {MultiheadError} `E_OPTION`, for instance when numHeads does not divide embedDim and no
   * headDim is given; `E_MEMORY`
   */
  multiHeadAttention(config: MultiHeadAttentionConfig): MultiHeadAttention;

  /**
   * Makes a transformer block: attention and an MLP with norms. {@link TransformerBlock.loadStateDict}
   * loads its parameters. Dispose it like a tensor.
   *
   * @throws {MultiheadError} `E_OPTION`, `E_MEMORY`
   */
  transformerBlock(config: TransformerBlockConfig): TransformerBlock;

  /**
   * Makes a transformer, from tokens to logits. {@link Transformer.loadStateDict} loads its parameters,
   * {@link Transformer.initialize} makes new ones. Dispose it like a tensor. `gpt2Config()` derives the configuration of a GPT-2 model from the shapes
   * of its parameters.
   *
   * @throws {MultiheadError} `E_OPTION`, `E_MEMORY`
   */
  transformer(config: TransformerConfig): Transformer;

  /**
   * Makes a trainer of a model that has parameters. It changes the model itself. Dispose it like a tensor.
   * `train()` of `multihead/training` is a loop around its steps.
   *
   * @throws {MultiheadError} `E_OPTION`, also for a model without parameters; `E_DISPOSED`; `E_MEMORY`
   */
  trainer(model: Transformer, options?: TrainerOptions): Trainer;

  /**
   * Makes an empty cache of keys and values. Dispose it like a tensor.
   *
   * @throws {MultiheadError} `E_OPTION` for extents that are not whole numbers ≥ 1, or a page size
   * without pages; `E_MEMORY`
   */
  createCache(config: KVCacheConfig): KVCache;

  /**
   * Opens the browser's GPU (WebGPU): {@link Gpu} has attention on it, with tensors that stay there until they are read. What it needs is
   * loaded by the first call. In Node, npm's `webgpu` must be installed. Each call opens a device of its own, unless one is given.
   * Dispose it like a tensor.
   *
   * @throws {MultiheadError} rejects with `E_GPU` if there is no WebGPU, no adapter or no device, and says which; `E_OPTION`, `E_ABORTED`,
   * `E_LOAD`
   */
  gpu(options?: GpuOptions): Promise<Gpu>;

  /**
   * Calls `fn` and then disposes every tensor, module, cache, trainer and prepared operation that was made
   * during the call, except those that `fn` returns: the value itself, or the values of a returned
   * array or plain object, and of arrays in it. If `fn` throws, everything is disposed. In nested
   * scopes, the values that the inner scope returns belong to the outer one.
   *
   * If `fn` returns a promise, the scope lasts until the promise settles, and owns everything that is
   * made on this `Multihead` in the meantime, by any code. Scopes that wait at the same time do not
   * dispose each other's tensors, and the caller owns what they return.
   */
  scope<T>(fn: () => T): T;
  /**
   * Opens a scope for `using scope = mh.scope()`: at the end of the block, everything that was made since is disposed,
   * except what was given to {@link Scope.keep}. If it is open during an `await`, it also owns what other code makes on
   * this `Multihead` in the meantime; for such code, use a function that returns a promise. Dispose it: until then its
   * tensors are not garbage-collected.
   */
  scope(): Scope;

  /** Returns the current allocations. */
  memory(): MemoryInfo;

  /**
   * Disposes the whole instance: its tensors, all other objects and its WebAssembly memory. The garbage collector frees
   * the memory, at the latest when no tensor and no `data` of it is reachable. Every later call throws `E_DISPOSED`, but
   * dispose() of its objects does nothing. If this is the instance that all callers of `load()` share, all of them lose
   * it, and the next `load()` makes a new one. A second call does nothing.
   */
  dispose(): void;
}
