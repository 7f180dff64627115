// The public types: the operations here, what they take and give in the files named below.
//
// Letters in shapes: B batch, H_q query heads, H_kv key/value heads, N_q queries,
// N_k keys, N tokens, d_k width of a query and key, d_v width of a value.
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
} from './attention_types.js';
import type { KVCache, KVCacheConfig } from './cache_types.js';
import type {
  HeadStatistics,
  HeadStatisticsOptions,
  MultiHeadAttention,
  MultiHeadAttentionConfig,
} from './layer_types.js';
import type { PreparedAttention, PrepareOptions } from './prepared_types.js';
import type {
  DType,
  FloatDType,
  FloatTensorLike,
  Shape,
  SourceOf,
  Tensor,
  TensorLike,
  TensorOptions,
} from './tensor_types.js';
import type {
  Transformer,
  TransformerBlock,
  TransformerBlockConfig,
  TransformerConfig,
} from './transformer_types.js';

export type * from './attention_types.js';
export type * from './cache_types.js';
export type * from './layer_types.js';
export type * from './prepared_types.js';
export type * from './safetensors_types.js';
export type * from './tensor_types.js';
export type * from './transformer_types.js';

/** `'relaxed'` has a fused multiply-add, `'simd128'` is what every browser since 2023 runs. */
export type Simd = 'relaxed' | 'simd128';

/** Options of {@link load}. */
export interface LoadOptions {
  /**
   * Where the `.wasm` comes from; the file beside the package's own modules when not given.
   * A string or `URL` is fetched; in Node, `file:` URLs and paths are read from the disk.
   * It must be the file that goes with the SIMD build in use, of the same package version.
   */
  readonly wasm?: string | URL | Response | BufferSource | WebAssembly.Module | undefined;
  /** Which build to load. Default `'auto'`: relaxed where the engine has it, else simd128. */
  readonly simd?: Simd | 'auto' | undefined;
  /** Aborting rejects with `E_ABORTED`. A load that others also wait for goes on for them. */
  readonly signal?: AbortSignal | undefined;
}

/** What was loaded, and why. */
export interface Backend {
  readonly simd: Simd;
  /** Highway's name of the SIMD target, for example `"WASM"`. */
  readonly target: string;
  /** Always 1 for now. */
  readonly threads: 1;
  /** Version of the package. */
  readonly version: string;
  /** Size of the `.wasm` in bytes, uncompressed; 0 when a `WebAssembly.Module` was given. */
  readonly wasmBytes: number;
  /** Why this build was chosen, in a sentence. */
  readonly why: string;
}

/** Options of {@link Multihead.linear}. */
export interface LinearOptions {
  /** (out). Default none. */
  readonly bias?: TensorLike | undefined;
  /** Written to instead of a new tensor, and returned. Not one of the inputs. */
  readonly out?: Tensor | undefined;
}

/** What is allocated in the WebAssembly memory of one {@link Multihead}. Sizes in bytes. */
export interface MemoryInfo {
  /** Tensors, layers, caches and prepared operations that are not disposed. */
  readonly live: number;
  /** Bytes that they hold; memory that {@link Tensor.reshape} shares is counted once. */
  readonly bytes: number;
  /** The most `bytes` has been, temporary copies of a call included. */
  readonly peak: number;
  /** Size of the whole WebAssembly memory. It never shrinks. */
  readonly heap: number;
}

/** The operations, on a WebAssembly memory of their own. Synchronous; one call at a time. */
export interface Multihead {
  readonly backend: Backend;

  /**
   * Copies `data` into WebAssembly memory, or makes zeros. A `Float32Array` makes 32-bit floats, a
   * `Uint8Array` booleans (0 false, everything else true). With `{ dtype: 'f16' }` or `'bf16'`, a
   * `Uint16Array` is taken as the bits and a `Float32Array` rounded to nearest, ties to even.
   *
   * @throws {MultiheadError} `E_SHAPE` for extents that are not whole numbers ≥ 0, more than four
   * of them, or a length of `data` that is not their product; `E_OPTION` for data that is not one
   * of these typed arrays or does not go with the dtype; `E_MEMORY`.
   */
  tensor(shape: Shape, data?: Float32Array): Tensor;
  tensor(shape: Shape, data: Uint8Array): Tensor<'bool'>;
  tensor<D extends DType>(
    shape: Shape,
    data: SourceOf<D> | undefined,
    options: TensorOptions<D>,
  ): Tensor<D>;

  /**
   * Scaled dot-product attention: softmax(scale · Q·Kᵀ + bias, masked) · V, exact.
   *
   * Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1, computed in tiles with a running
   * maximum, so extra memory is O(N). {@link MaskOptions} says what its options compute, and in
   * which order. A query that sees no key has output 0, weights 0 and LSE −Infinity; hidden keys
   * and values never contribute, not even NaN. Products and sums are in 32 bits.
   *
   * @param q (B, H_q, N_q, d_k)
   * @param k (B, H_kv, N_k, d_k). H_q is a multiple of H_kv; query head h uses key/value head
   * ⌊h / (H_q / H_kv)⌋ (grouped heads, arXiv:2305.13245)
   * @param v (B, H_kv, N_k, d_v), of k's dtype
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`. A refused call leaves
   * nothing allocated.
   */
  attention<
    const R extends readonly AttentionReturn[] = [],
    const O extends FloatDType = 'f32',
    const C extends readonly Capture[] = [],
  >(
    q: FloatTensorLike,
    k: FloatTensorLike,
    v: FloatTensorLike,
    options?: AttentionOptions<R, O, C>,
  ): AttentionResult<R, O, C>;

  /**
   * Checks and plans a call of {@link Multihead.attention} once, for hot loops: beside the computation,
   * `run()` costs a fraction of a microsecond.
   *
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`. A refused call leaves
   * nothing allocated.
   */
  prepare(options: PrepareOptions): PreparedAttention;

  /**
   * The scores of attention, some rows at a time, so that an N_q × N_k matrix never exists. No values
   * and no output; only the rows asked for are computed. Unknown options throw at once, everything
   * else as soon as the first rows are asked for. Leaving the loop early frees what it holds.
   *
   * @param q (B, H_q, N_q, d_k)
   * @param k (B, H_kv, N_k, d_k)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  scores(
    q: FloatTensorLike,
    k: FloatTensorLike,
    options: ScoresOptions,
  ): Generator<ScoreRows, void, undefined>;

  /**
   * Attention of packed sequences of different lengths, each to itself alone.
   *
   * @param q (T_q, H_q, d_k)
   * @param k (T_k, H_kv, d_k)
   * @param v (T_k, H_kv, d_v), of k's dtype
   * @returns `out` (T_q, H_q, d_v) and, if asked for, `lse` (H_q, T_q)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  attentionVarlen<const R extends readonly 'lse'[] = [], const O extends FloatDType = 'f32'>(
    q: FloatTensorLike,
    k: FloatTensorLike,
    v: FloatTensorLike,
    options: VarlenOptions<R, O>,
  ): VarlenResult<R, O>;

  /**
   * Joins results over disjoint keys into `a`: lse = log(e^lseA + e^lseB),
   * out = outA · e^(lseA − lse) + outB · e^(lseB − lse). Exact, in any order and number. A sink
   * belongs to one part only.
   *
   * @param a tensors, written to
   * @returns `a`
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  mergeAttention<A extends PartialAttention<Tensor>>(a: A, b: PartialAttention): A;

  /**
   * Slopes of ALiBi (arXiv:2108.12409, section 3): with n the largest power of two ≤ heads,
   * 2^(−8(h + 1)/n) for h < n and 2^(−4(2(h − n) + 1)/n) for the others.
   *
   * @throws {MultiheadError} `E_OPTION` unless `heads` is a whole number ≥ 1
   */
  alibiSlopes(heads: number): Float32Array;

  /**
   * Rotates x (RoPE, arXiv:2104.09864), for instance before keys go into a cache.
   *
   * @param x (B, H, N, d)
   * @param positions (N), shared by the batch, or (B · N) row by row
   * @returns (B, H, N, d)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  rotate(x: TensorLike, positions: Int32Array, rope: RopeRotation): Tensor;

  /**
   * Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values of
   * all heads come from one low-rank latent per token, plus a shared part that carries RoPE.
   *
   * @returns `out` (B, H, N_q, d_v) and what else was asked for
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
   * Makes a layer, whose parameters {@link MultiHeadAttention.loadStateDict} then loads. Dispose it as a
   * tensor.
   *
   * @throws {MultiheadError} `E_OPTION`, for instance when numHeads does not divide embedDim and no
   * headDim is given
   */
  multiHeadAttention(config: MultiHeadAttentionConfig): MultiHeadAttention;

  /**
   * Makes a transformer block: attention and an MLP with norms, whose parameters
   * {@link TransformerBlock.loadStateDict} then loads. Dispose it as a tensor.
   *
   * @throws {MultiheadError} `E_OPTION`
   */
  transformerBlock(config: TransformerBlockConfig): TransformerBlock;

  /**
   * Makes a stack of transformer blocks from tokens to logits, whose parameters
   * {@link Transformer.loadStateDict} then loads. Dispose it as a tensor. `gpt2Config()` reads the
   * configuration of a GPT-2 model from the shapes of its parameters.
   *
   * @throws {MultiheadError} `E_OPTION`
   */
  transformer(config: TransformerConfig): Transformer;

  /**
   * Statistics of the attention weights of each head: their entropy, and how much weight goes to the
   * previous token, to the first token, and to tokens that followed an earlier occurrence of this one.
   *
   * @param weights (B, H, N_q, N_k) with N_q ≤ N_k, as a layer gives them, or (H, N_q, N_k)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  headStatistics(weights: TensorLike, options?: HeadStatisticsOptions): HeadStatistics;

  /**
   * Makes an empty cache of keys and values. Dispose it as a tensor.
   *
   * @throws {MultiheadError} `E_OPTION` for extents that are not whole numbers ≥ 1, or a page size
   * without pages; `E_MEMORY`
   */
  createCache(config: KVCacheConfig): KVCache;

  /**
   * Calls `fn` and disposes every tensor, layer and cache made inside, except those returned: the
   * value itself, or the values of a returned array or plain object, and of arrays in that. In a
   * scope within a scope, what the inner one returns belongs to the outer one. When `fn` throws,
   * everything is disposed.
   *
   * When `fn` returns a promise, the scope lasts until that settles, and what anybody makes on this
   * `Multihead` in the meantime belongs to it. Scopes that wait at the same time do not dispose each
   * other's tensors, and what one of them returns belongs to its caller.
   */
  scope<T>(fn: () => T): T;

  memory(): MemoryInfo;
}
