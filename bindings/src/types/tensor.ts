/// <reference lib="esnext.disposable" preserve="true" />

// Tensors, and the typed arrays that calls also take as arguments.

import type { PlatformFloat16Array } from './platform.js';

/**
 * 16-bit floats: IEEE 754 binary16 (`'f16'`), or bfloat16, the upper 16 bits of a 32-bit float. They
 * are for storage only: all arithmetic is in 32 bits.
 */
export type HalfDType = 'f16' | 'bf16';

/** The dtypes that attention reads and writes. */
export type FloatDType = 'f32' | HalfDType;

/** The dtype of a tensor. A `'bool'` is a byte: 0 is false, everything else true. */
export type DType = FloatDType | 'bool';

/** The typed array of a {@link DType}. For half-precision floats it holds their bits. */
export type DataOf<D extends DType> = D extends 'f32' ? Float32Array : D extends 'bool' ? Uint8Array : Uint16Array;

/** Extents, outermost first: one to four non-negative integers. An extent of 0 is legal. */
export type Shape = readonly number[];

/**
 * A tensor in WebAssembly memory, made by {@link Multihead.tensor} or by an operation. Row-major,
 * without gaps.
 *
 * `using`, {@link Tensor.dispose} or {@link Multihead.scope} free its memory. If none of them does, the
 * garbage collector frees it, and the first such tensor logs a warning on the console.
 */
export interface Tensor<D extends DType = 'f32'> extends DisposableObject {
  /** Extents, outermost first. */
  readonly shape: Shape;
  /** Dtype of the elements. */
  readonly dtype: D;
  /** Number of elements: the product of `shape`. */
  readonly size: number;
  /**
   * A view of the tensor's memory, not a copy: writing to it writes to the tensor. For `'f16'` and
   * `'bf16'` it holds bits; {@link Tensor.toFloat32} converts them. Read this property again after every
   * call: when the WebAssembly memory grows, older views are detached (their length becomes 0), and
   * the property returns a new one.
   *
   * Do not use a view after {@link Tensor.dispose}. The memory may then belong to another tensor, or to the allocator:
   * a write changes that tensor, or a later call ends with `E_FATAL`. The garbage collector does not free a tensor
   * while this array is reachable, but another array on the same buffer, such as `data.subarray(1)`, does not prevent
   * that. To keep the numbers or to send them to another thread, copy them with {@link Tensor.toFloat32}, or with
   * `data.slice()` for bits and booleans: `postMessage(tensor.data)` and `structuredClone(tensor.data)` copy the whole
   * WebAssembly memory.
   *
   * @throws {MultiheadError} `E_DISPOSED` after {@link Tensor.dispose}.
   */
  readonly data: DataOf<D>;
  /**
   * A tensor of another shape that shares this tensor's memory: a write to one changes both. Dispose
   * each of them, in any order; the last dispose() frees the memory. A call refuses tensors that share
   * memory as its input and output.
   *
   * @throws {MultiheadError} `E_SHAPE` unless the shape has one to four extents that are whole numbers
   * ≥ 0, with the same number of elements; `E_DISPOSED`.
   */
  reshape(shape: Shape): Tensor<D>;
  /**
   * A copy converted to 32-bit floats, exact for every dtype. Booleans are returned as their bytes.
   *
   * @throws {MultiheadError} `E_DISPOSED` after {@link Tensor.dispose}.
   */
  toFloat32(): Float32Array;
  /** The dtype and shape alone, which `JSON.stringify` writes; `console.log` also shows the first numbers. */
  toJSON(): {
    /** Element type. */
    readonly dtype: D;
    /** Extents. */
    readonly shape: Shape;
  };
}

/** An object that keeps memory until dispose(), the end of a `using` block or of a {@link Multihead.scope}. */
export interface DisposableObject {
  /** True once dispose() was called on the object, or on the `Multihead`, pool or model that it belongs to. */
  readonly disposed: boolean;
  /** Frees the memory. A second call does nothing. */
  dispose(): void;
  /** Calls dispose(), for `using`. */
  [Symbol.dispose](): void;
}

/** Every option with its default filled in; options without a default, `Open`, may be undefined. */
export type Filled<C, Open extends keyof C = never> = {
  readonly [N in keyof C]-?: N extends Open ? C[N] : Exclude<C[N], undefined>;
};

/** Result objects of calls, for `using`. Not an interface, so that results stay assignable to records. */
export type DisposableResult = {
  /**
   * Disposes every tensor that the call has made for this result. Leaves an `out` that the caller has given. A property
   * that is not enumerable: a copy such as `{ ...result }` lacks it.
   */
  [Symbol.dispose](): void;
};

type PlainNumbers<D extends Exclude<DType, HalfDType>> = D extends unknown
  ? {
      /** Row-major. */
      readonly data: DataOf<D>;
      /** Extents, outermost first. */
      readonly shape: Shape;
    }
  : never;
type PlainHalves<D extends HalfDType> = [D] extends [never]
  ? never
  : {
      /** The bits of each number, row-major. */
      readonly data: Uint16Array;
      /** Extents, outermost first. */
      readonly shape: Shape;
      /** Format of the bits. */
      readonly dtype: D;
    };

/** A typed array with a shape, as an argument. For the bits of half-precision floats, `dtype` is required. */
export type PlainTensor<D extends DType = 'f32'> = PlainNumbers<Exclude<D, HalfDType>> | PlainHalves<Extract<D, HalfDType>>;

/**
 * A tensor, or a typed array with a shape. The call copies a typed array into WebAssembly memory and
 * frees the copy at its end; make a {@link Tensor} from data that several calls use.
 */
export type TensorLike<D extends DType = 'f32'> = Tensor<D> | PlainTensor<D>;

/** A `Float16Array` with a shape, as an argument, in engines that have this class. It is `'f16'`. */
export interface Float16Numbers {
  /** Row-major. */
  readonly data: PlatformFloat16Array;
  /** Extents, outermost first. */
  readonly shape: Shape;
  /** Optional, unlike with a `Uint16Array`. */
  readonly dtype?: 'f16' | undefined;
}

/** A {@link TensorLike} of 32-bit or half-precision floats. */
export type FloatTensorLike = TensorLike<FloatDType> | Float16Numbers;

/** Numbers, or arrays of them in arrays, up to four levels. */
export type NestedNumbers =
  | readonly number[]
  | readonly (readonly number[])[]
  | readonly (readonly (readonly number[])[])[]
  | readonly (readonly (readonly (readonly number[])[])[])[];

/** The arrays that {@link Multihead.tensor} accepts for this dtype. */
export type SourceOf<D extends DType> =
  | DataOf<D>
  | NestedNumbers
  | (D extends HalfDType ? Float32Array : never)
  | (D extends 'f16' ? PlatformFloat16Array : never);

/** Options of {@link Multihead.tensor} and {@link Multihead.zeros}. */
export interface TensorOptions<D extends DType = DType> {
  /**
   * Default: `'f32'` for zeros, a `Float32Array` or numbers, `'f16'` for a `Float16Array`, `'bool'` for a `Uint8Array`. With `'f16'` or `'bf16'`, a
   * `Float32Array` and numbers are rounded to nearest, ties to even, and a `Uint16Array` holds the bits. A
   * `Uint16Array` requires this option.
   */
  readonly dtype: D;
}
