/// <reference lib="esnext.disposable" preserve="true" />

// Every public type, and with it the contract of the package.
//
// Letters in shapes: B batch, H_q query heads, H_kv key/value heads, N_q queries,
// N_k keys, N tokens, d_k width of a query and key, d_v width of a value.
// Every tensor is row-major without gaps; floats are 32 bits wide.

/** What a tensor holds: 32-bit floats, or bytes of which 0 is false and everything else true. */
export type DType = 'f32' | 'bool';

/** The typed array that goes with a {@link DType}. */
export type DataOf<D extends DType> = D extends 'f32' ? Float32Array : Uint8Array;

/** Extents, outermost first: one to four non-negative integers. An extent of 0 is legal. */
export type Shape = readonly number[];

/**
 * Numbers in WebAssembly memory. Made by {@link Multihead.tensor} and by the operations.
 *
 * Its memory is freed by `using`, {@link Tensor.dispose} or {@link Multihead.scope}. A tensor that
 * was forgotten is freed when the garbage collector finds it, with one warning on the console.
 */
export interface Tensor<D extends DType = 'f32'> {
  readonly shape: Shape;
  readonly dtype: D;
  /** Number of elements: the product of `shape`. */
  readonly size: number;
  /**
   * A live view of the memory, without a copy; writing to it writes to the tensor. Read the
   * property again after a call: when the memory grows, views taken before are detached
   * (their length becomes 0), and this property gives a new one.
   *
   * @throws {MultiheadError} `E_DISPOSED` after {@link Tensor.dispose}.
   */
  readonly data: DataOf<D>;
  readonly disposed: boolean;
  /** Frees the memory. A second call does nothing. */
  dispose(): void;
  /** The same as {@link Tensor.dispose}, for `using`. */
  [Symbol.dispose](): void;
}

/**
 * A tensor, or a typed array with a shape. The latter is copied into WebAssembly memory for the
 * length of the call and freed at its end: make a {@link Tensor} of what is used more than once.
 */
export type TensorLike<D extends DType = 'f32'> =
  Tensor<D> | { readonly data: DataOf<D>; readonly shape: Shape };

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

/**
 * Which keys are hidden from a query. Query i stands at position p = i + offset among the keys
 * and sees key j where j ≤ p.
 *
 * - `false`: every key is visible
 * - `'topLeft'`: offset 0, PyTorch's `is_causal`
 * - `'bottomRight'`: offset N_k − N_q, FlashAttention from 2.1 on, and decoding with a cache
 * - `{ offset }`: that integer, which may be negative; ONNX Attention's past length
 *
 * `true` is refused, because frameworks disagree on what it means when N_q ≠ N_k.
 */
export type Causal = false | 'topLeft' | 'bottomRight' | { readonly offset: number };

/** What {@link Multihead.attention} and {@link MultiHeadAttention.forward} share. All masks apply together. */
export interface MaskOptions {
  /** Factor on Q·Kᵀ, any finite number. Default 1/√d_k, the width of one head, never of the model. */
  readonly scale?: number | undefined;
  /** Default `false`. */
  readonly causal?: Causal | undefined;
  /**
   * Non-zero = may attend, as in `torch.nn.functional.scaled_dot_product_attention` and ONNX.
   * Shape (N_q, N_k) or (B, H_q, N_q, N_k), where any extent may be 1 and is then shared along
   * that axis. Three axes are refused: they do not say whether the first is B or H_q.
   */
  readonly mask?: TensorLike<'bool'> | undefined;
  /**
   * Added to the scaled scores; the same shapes as `mask`. −Infinity hides a key, a large finite
   * negative number does not.
   */
  readonly bias?: TensorLike | undefined;
}

/** Optional results of {@link Multihead.attention}. */
export type AttentionReturn = 'lse' | 'weights';

/** Options of {@link Multihead.attention}. */
export interface AttentionOptions<
  R extends readonly AttentionReturn[] = readonly AttentionReturn[],
> extends MaskOptions {
  /** Results besides `out`. Default none. `'weights'` costs N_q × N_k numbers for each head. */
  readonly return?: R | undefined;
  /** Written to instead of a new tensor, and returned as `out`. Not one of the inputs. */
  readonly out?: Tensor | undefined;
}

/** Results of {@link Multihead.attention}. The caller disposes all of them. */
export type AttentionResult<R extends readonly AttentionReturn[] = []> = {
  /** (B, H_q, N_q, d_v). 0 for a query that sees no key. */
  readonly out: Tensor;
} & (number extends R['length']
  ? { readonly [K in R[number]]?: Tensor }
  : { readonly [K in R[number]]: Tensor });
// lse:     (B, H_q, N_q), natural log of Σ exp(score) over the visible keys; −Infinity without any.
// weights: (B, H_q, N_q, N_k), the softmax; 0 where hidden.

/** Options of {@link Multihead.linear}. */
export interface LinearOptions {
  /** (out). Default none. */
  readonly bias?: TensorLike | undefined;
  /** Written to instead of a new tensor, and returned. Not one of the inputs. */
  readonly out?: Tensor | undefined;
}

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
 * `x` (B, N, embedDim) · `q`, `k`, `v` (B, N, H·headDim) · `qHeads`, `kHeads`, `vHeads`
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

/** What is allocated in the WebAssembly memory of one {@link Multihead}. Sizes in bytes. */
export interface MemoryInfo {
  /** Tensors that are not disposed, the weights of layers among them. */
  readonly live: number;
  /** Bytes that they hold. */
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
   * Copies `data` into WebAssembly memory, or makes zeros. A `Float32Array` makes floats, a
   * `Uint8Array` booleans (0 false, everything else true).
   *
   * @throws {MultiheadError} `E_SHAPE` for extents that are not whole numbers ≥ 0, more than four
   * of them, or a length of `data` that is not their product; `E_OPTION` for data that is not one
   * of the two typed arrays; `E_MEMORY`.
   */
  tensor(shape: Shape, data?: Float32Array): Tensor;
  tensor(shape: Shape, data: Uint8Array): Tensor<'bool'>;

  /**
   * Scaled dot-product attention: softmax(scale · Q·Kᵀ + bias, masked) · V, exact.
   *
   * Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.1, computed in tiles with a running
   * maximum, so extra memory is O(N). A query that sees no key has output 0, weights 0 and
   * LSE −Infinity; hidden keys and values never contribute, not even NaN.
   *
   * @param q (B, H_q, N_q, d_k)
   * @param k (B, H_kv, N_k, d_k). H_q is a multiple of H_kv; query head h uses key/value head
   * ⌊h / (H_q / H_kv)⌋ (grouped heads, arXiv:2305.13245)
   * @param v (B, H_kv, N_k, d_v)
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`. A refused call leaves
   * nothing allocated.
   */
  attention<const R extends readonly AttentionReturn[] = []>(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    options?: AttentionOptions<R>,
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
   * Makes a layer that owns a copy of its weights. Dispose it as a tensor.
   *
   * @throws {MultiheadError} `E_OPTION` when numHeads does not divide embedDim and no headDim is
   * given; `E_SHAPE` for a weight whose shape does not fit, with its name; `E_DISPOSED`; `E_MEMORY`
   */
  multiHeadAttention(config: MultiHeadAttentionConfig): MultiHeadAttention;

  /**
   * Calls `fn` and disposes every tensor and layer made inside, except those returned: the value
   * itself, or the values of a returned array or plain object, one level deep. In a scope within
   * a scope, what the inner one returns belongs to the outer one. When `fn` throws, everything is disposed.
   *
   * When `fn` returns a promise, the scope lasts until that settles, and what anybody makes on this
   * `Multihead` in the meantime belongs to it. Scopes that wait at the same time do not dispose each
   * other's tensors, and what one of them returns belongs to its caller.
   */
  scope<T>(fn: () => T): T;

  memory(): MemoryInfo;
}
