/// <reference lib="esnext.disposable" preserve="true" />

// The browser's GPU: attention by WebGPU.

import type { AttentionOptions, AttentionResult, AttentionReturn, Capture, RopeRotation, ScoresOptions, VarlenOptions } from './attention.js';
import type { CacheAttendOptions, KVCache, KVCacheConfig } from './cache.js';
import type { PlatformAbortSignal, PlatformGPUAdapter, PlatformGPUBuffer, PlatformGPUDevice } from './platform.js';
import type { DataOf, DType, FloatDType, FloatTensorLike, NestedNumbers, Shape, SourceOf, Tensor, TensorLike, TensorOptions } from './tensor.js';

/** Options of {@link Multihead.gpu}. */
export interface GpuOptions {
  /**
   * A device of the caller, who keeps it: tensors can then stand between its other users without a copy. It should have the adapter's
   * limits and the feature `'subgroups'`. Default one of `adapter`'s.
   */
  readonly device?: PlatformGPUDevice | undefined;
  /** Default the one that the browser chooses. */
  readonly adapter?: PlatformGPUAdapter | undefined;
  /** Which GPU the browser prefers, on a machine with two. Default its own choice. */
  readonly powerPreference?: 'low-power' | 'high-performance' | undefined;
  /** Aborting rejects the call with `E_ABORTED`. Default none. */
  readonly signal?: PlatformAbortSignal | undefined;
}

/** The device of a {@link Gpu}, as far as calls depend on it. */
export interface GpuInfo {
  /** The adapter's words for itself; empty where the browser hides them. */
  readonly description: string;
  /** True for a GPU that the processor emulates; `false` also where the browser does not say it. */
  readonly software: boolean;
  /** Invocations of a subgroup that kernels use; 0 if the device has no subgroups, or not always as many. */
  readonly subgroup: number;
  /** Bytes of workgroup memory. */
  readonly workgroupBytes: number;
  /** Storage buffers that a kernel may use. */
  readonly storageBuffers: number;
  /** Bytes of the longest binding. */
  readonly bindingBytes: number;
}

/**
 * A tensor on a GPU, made by {@link Gpu.tensor} or by a call. Row-major, without gaps, unless {@link Gpu.wrap} made it of strides.
 *
 * `using`, {@link GpuTensor.dispose} or {@link Multihead.scope} free its memory. If none of them does, the garbage collector frees it.
 */
export interface GpuTensor<D extends DType = 'f32'> {
  /** Extents, outermost first. */
  readonly shape: Shape;
  /** Dtype of the elements. */
  readonly dtype: D;
  /** Number of elements: the product of `shape`. */
  readonly size: number;
  /**
   * The buffer with its numbers, from byte `offset` on, for shaders of the caller; await {@link Gpu.submitted} before them. The tensor
   * keeps it: a call may use it for other numbers once the tensor is disposed.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  readonly buffer: PlatformGPUBuffer;
  /** Bytes before the first number. */
  readonly offset: number;
  /**
   * Copies the numbers from the GPU, row-major without gaps, once everything that was called before is done. This is what takes time
   * in a browser: 5 to 30 ms.
   *
   * @throws {MultiheadError} `E_DISPOSED`. Rejects with what made the tensor fail: `E_GPU`, `E_GPU_LOST`, `E_MEMORY`.
   */
  read(): Promise<DataOf<D>>;
  /** Like {@link GpuTensor.read}, converted to 32-bit floats. */
  toFloat32(): Promise<Float32Array>;
  /** True once dispose() was called, on the tensor, its {@link Gpu} or its {@link Multihead}. */
  readonly disposed: boolean;
  /** Frees the memory once what was called before has used it. A second call does nothing. */
  dispose(): void;
  /** The dtype and shape alone. */
  toJSON(): {
    /** Element type. */
    readonly dtype: D;
    /** Extents. */
    readonly shape: Shape;
  };
  /** Calls {@link GpuTensor.dispose}, for `using`. */
  [Symbol.dispose](): void;
}

/** How a buffer of {@link Gpu.wrap} holds a tensor. */
export interface GpuWrapOptions<D extends DType = DType> {
  /** Default `'f32'`. */
  readonly dtype?: D | undefined;
  /** Extents, outermost first. */
  readonly shape: Shape;
  /** Elements from one index of an axis to the next. Default without gaps, row-major. */
  readonly strides?: Shape | undefined;
  /** Bytes before the first element: a multiple of the device's `minStorageBufferOffsetAlignment`, 256 or less. Default 0. */
  readonly offset?: number | undefined;
}

/** A tensor on the GPU, or numbers that the call copies to it. */
export type GpuFloatTensorLike = GpuTensor<FloatDType> | FloatTensorLike;

/** The same with its tensors on the GPU. */
export type OnGpu<T> = T extends Tensor<infer D> ? GpuTensor<D> : T extends readonly Tensor[] ? { readonly [I in keyof T]: GpuTensor } : T;
/** Results with their tensors on the GPU. */
export type GpuResult<T> = { readonly [N in keyof T]: OnGpu<T[N]> };

/** The masks of a call, which may be on the GPU. */
export interface GpuMasks {
  /** As for {@link Multihead.attention}. */
  readonly mask?: GpuTensor<'bool'> | TensorLike<'bool'> | undefined;
  /** As for {@link Multihead.attention}. */
  readonly bias?: GpuTensor | TensorLike | undefined;
}

/** The output of a call, on the GPU. */
export interface GpuOutput<O extends FloatDType = FloatDType> {
  /** Tensor to write to and return. It must not be one of the inputs. Default a new one. */
  readonly out?: GpuTensor<O> | undefined;
}

/** Options whose tensors may be on the GPU. */
export type WithGpuTensors<T, O extends FloatDType = FloatDType> = Omit<T, 'mask' | 'bias' | 'out' | 'dropout'> &
  ('mask' extends keyof T ? GpuMasks : unknown) &
  GpuOutput<O>;

/** Options of {@link Gpu.attention}: all of {@link Multihead.attention} but dropout. */
export type GpuAttentionOptions<
  R extends readonly AttentionReturn[] = readonly AttentionReturn[],
  O extends FloatDType = FloatDType,
  C extends readonly Capture[] = readonly Capture[],
> = WithGpuTensors<AttentionOptions<R, O, C>, O>;

/** Options of {@link Gpu.attentionVarlen}. */
export type GpuVarlenOptions<R extends readonly 'lse'[] = readonly 'lse'[], O extends FloatDType = FloatDType> = WithGpuTensors<
  VarlenOptions<R, O>,
  O
>;

/** Options of {@link Gpu.attentionScores}. */
export type GpuScoresOptions = Omit<WithGpuTensors<ScoresOptions>, 'head' | 'chunk' | 'out'>;

/** A cache of keys and values on a GPU, of f32, f16 or bf16. */
export interface GpuCache extends Omit<KVCache, 'append' | 'attend'> {
  /** {@link KVCache.append}, of tensors on the GPU or numbers. Throws as it does. */
  append(k: GpuFloatTensorLike, v: GpuFloatTensorLike, counts?: Int32Array): void;
  /** {@link KVCache.attend} on the GPU. Throws as it does, and as {@link Gpu.attention}. */
  attend<const R extends readonly AttentionReturn[] = [], const O extends FloatDType = 'f32', const C extends readonly Capture[] = []>(
    q: GpuFloatTensorLike,
    options?: WithGpuTensors<CacheAttendOptions<R, O, C>, O>,
  ): GpuResult<AttentionResult<R, O, C>>;
}

/** Options of {@link Gpu.linear}. */
export interface GpuLinearOptions extends GpuOutput<'f32'> {
  /** (out). Default none. */
  readonly bias?: GpuTensor | TensorLike | undefined;
}

/** One dispatch of a kernel, of {@link Gpu.explain}. */
export interface GpuDispatch {
  /** The kernel's name: a file of `src/webgpu/kernels`. */
  readonly kernel: string;
  /** What its text depends on. */
  readonly constants: readonly number[];
  /** Workgroups along each axis. */
  readonly groups: readonly [number, number, number];
  /** Bytes of each buffer that it can reach. */
  readonly bytes: readonly number[];
}

/** What a call does on the GPU. */
export interface GpuExplanation {
  /** In order. */
  readonly dispatches: readonly GpuDispatch[];
  /** Bytes of memory besides the operands. */
  readonly scratch: number;
}

/** {@link Multihead}'s calls on a GPU. They return at once; {@link GpuTensor.read} waits. */
export interface Gpu {
  /** The device, for other users of it. */
  readonly device: PlatformGPUDevice;
  /** What calls depend on. */
  readonly info: GpuInfo;

  /**
   * Copies numbers to the GPU, with the arguments of {@link Multihead.tensor}.
   *
   * @throws {MultiheadError} as {@link Multihead.tensor}; `E_DISPOSED`
   */
  tensor(data: Float32Array | NestedNumbers, shape?: Shape, options?: { readonly dtype?: undefined }): GpuTensor;
  /** Copies booleans: 0 is false, everything else true. Throws as above. */
  tensor(data: Uint8Array, shape?: Shape, options?: { readonly dtype?: undefined }): GpuTensor<'bool'>;
  /** Copies numbers as this dtype. Throws as above. */
  tensor<D extends DType>(data: SourceOf<D>, shape: Shape | undefined, options: TensorOptions<D>): GpuTensor<D>;
  /** Copies a tensor. */
  tensor<D extends DType>(tensor: Tensor<D>): GpuTensor<D>;
  /**
   * A tensor in a buffer of the caller, who keeps it: dispose() of the tensor leaves it. The buffer needs `GPUBufferUsage.STORAGE`, and
   * `COPY_SRC` for {@link GpuTensor.read}.
   *
   * @throws {MultiheadError} `E_OPTION`; `E_SHAPE` if the buffer is too short; `E_DISPOSED`
   */
  wrap<D extends DType = 'f32'>(buffer: PlatformGPUBuffer, options: GpuWrapOptions<D>): GpuTensor<D>;

  /**
   * {@link Multihead.attention} on the GPU, with the same options but dropout, the same results and the same errors. q, k, v, masks and
   * biases that are not on the GPU are copied to it.
   *
   * @param q (B, H_q, N_q, d_k), d_k ≤ 256
   * @param k (B, H_kv, N_k, d_k)
   * @param v (B, H_kv, N_k, d_v), d_v ≤ 256
   * @throws {MultiheadError} as {@link Multihead.attention}; `E_OPTION` also for what only the CPU has
   */
  attention<const R extends readonly AttentionReturn[] = [], const O extends FloatDType = 'f32', const C extends readonly Capture[] = []>(
    q: GpuFloatTensorLike,
    k: GpuFloatTensorLike,
    v: GpuFloatTensorLike,
    options?: GpuAttentionOptions<R, O, C>,
  ): GpuResult<AttentionResult<R, O, C>>;
  /** {@link Multihead.attentionVarlen} on the GPU. Throws as {@link Gpu.attention}. */
  attentionVarlen<const R extends readonly 'lse'[] = [], const O extends FloatDType = 'f32'>(
    q: GpuFloatTensorLike,
    k: GpuFloatTensorLike,
    v: GpuFloatTensorLike,
    options: GpuVarlenOptions<R, O>,
  ): GpuResult<AttentionResult<R, O>>;
  /**
   * The scores of chosen heads and rows, as {@link Multihead.scores} gives them, in one tensor (B, heads, rows, N_k).
   *
   * @throws {MultiheadError} as {@link Gpu.attention}
   */
  attentionScores(q: GpuFloatTensorLike, k: GpuFloatTensorLike, options: GpuScoresOptions): GpuTensor;
  /**
   * Makes an empty cache on the GPU, with the configuration of {@link Multihead.createCache}. Dispose it like a tensor.
   *
   * @throws {MultiheadError} as {@link Multihead.createCache}; `E_OPTION` also for int8
   */
  cache(config: KVCacheConfig): GpuCache;
  /** {@link Multihead.rotate} on the GPU, up to d = 256. Throws as it does. */
  rotate(x: GpuTensor | TensorLike, positions: Int32Array, rope: RopeRotation): GpuTensor;
  /** {@link Multihead.linear} on the GPU. Throws as it does. */
  linear(x: GpuTensor | TensorLike, weight: GpuTensor | TensorLike, options?: GpuLinearOptions): GpuTensor;
  /** What {@link Gpu.attention} would do with these arguments: kernels, workgroups and bytes. Throws as it does. */
  explain(q: GpuFloatTensorLike, k: GpuFloatTensorLike, v: GpuFloatTensorLike, options?: GpuAttentionOptions): GpuExplanation;

  /** Resolves when everything called so far was given to the device, so that commands of the caller come after it. */
  submitted(): Promise<void>;
  /** True once dispose() was called, on it or on its {@link Multihead}. */
  readonly disposed: boolean;
  /** Disposes all its tensors and caches, and the device unless it is the caller's. A second call does nothing. */
  dispose(): void;
  /** Calls {@link Gpu.dispose}, for `using`. */
  [Symbol.dispose](): void;
}
