/// <reference lib="esnext.disposable" preserve="true" />

// What goes into calls and comes out of them: numbers with a shape.

/**
 * Half-precision floats: IEEE 754 binary16, or the upper half of a 32-bit float. Storage only: all
 * arithmetic is in 32 bits.
 */
export type HalfDType = 'f16' | 'bf16';

/** The floats that attention reads and writes. */
export type FloatDType = 'f32' | HalfDType;

/** What a tensor holds: floats, or bytes of which 0 is false and everything else true. */
export type DType = FloatDType | 'bool';

/** The typed array that goes with a {@link DType}. Half-precision floats are their 16 bits. */
export type DataOf<D extends DType> = D extends 'f32'
  ? Float32Array
  : D extends 'bool'
    ? Uint8Array
    : Uint16Array;

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
   * A live view of the memory, without a copy; writing to it writes to the tensor. Of `'f16'` and
   * `'bf16'` it shows the bits: {@link Tensor.toFloat32} gives numbers. Read the property again
   * after a call: when the memory grows, views taken before are detached (their length becomes 0),
   * and this property gives a new one.
   *
   * It is for use while the tensor is in use. After {@link Tensor.dispose} a view that was kept
   * shows whatever comes to lie there next. The array itself keeps its tensor from being collected;
   * another array on the same buffer, such as `data.subarray(1)`, does not. For numbers to keep,
   * copy: {@link Tensor.toFloat32}, or `data.slice()` for bits and booleans.
   *
   * @throws {MultiheadError} `E_DISPOSED` after {@link Tensor.dispose}.
   */
  readonly data: DataOf<D>;
  /**
   * A tensor of another shape on the same memory, without a copy: what is written to one shows in
   * the other. Each has to be disposed of its own, in any order; the memory is freed with the last.
   * Two that share memory cannot be input and output of one call.
   *
   * @throws {MultiheadError} `E_SHAPE` for extents that are not whole numbers ≥ 0, more than four of
   * them, or another number of elements; `E_DISPOSED`.
   */
  reshape(shape: Shape): Tensor<D>;
  /**
   * A copy as numbers, exact for every dtype; booleans become 0 and 1.
   *
   * @throws {MultiheadError} `E_DISPOSED` after {@link Tensor.dispose}.
   */
  toFloat32(): Float32Array;
  readonly disposed: boolean;
  /** Frees the memory. A second call does nothing. */
  dispose(): void;
  /** The same as {@link Tensor.dispose}, for `using`. */
  [Symbol.dispose](): void;
}

type PlainNumbers<D extends Exclude<DType, HalfDType>> = D extends unknown
  ? { readonly data: DataOf<D>; readonly shape: Shape }
  : never;
type PlainHalves<D extends HalfDType> = [D] extends [never]
  ? never
  : { readonly data: Uint16Array; readonly shape: Shape; readonly dtype: D };

/** A typed array with a shape, as an argument. The bits of half-precision floats need their dtype. */
export type PlainTensor<D extends DType = 'f32'> =
  PlainNumbers<Exclude<D, HalfDType>> | PlainHalves<Extract<D, HalfDType>>;

/**
 * A tensor, or a typed array with a shape. The latter is copied into WebAssembly memory for the
 * length of the call and freed at its end: make a {@link Tensor} of what is used more than once.
 */
export type TensorLike<D extends DType = 'f32'> = Tensor<D> | PlainTensor<D>;

/** A {@link TensorLike} of any of the three kinds of floats. */
export type FloatTensorLike = TensorLike<FloatDType>;

/** What {@link Multihead.tensor} makes a tensor of that dtype from. */
export type SourceOf<D extends DType> = DataOf<D> | (D extends HalfDType ? Float32Array : never);

/** Options of {@link Multihead.tensor}. */
export interface TensorOptions<D extends DType = DType> {
  /**
   * Default: what the typed array says. A `Float32Array` given for `'f16'` or `'bf16'` is rounded, to
   * nearest and ties to even; a `Uint16Array` holds the bits already, and needs this option.
   */
  readonly dtype: D;
}
