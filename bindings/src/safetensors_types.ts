// Safetensors files: what is read from them, and what may be written.

import type { DType, FloatDType, Shape, TensorLike } from './tensor_types.js';

/** The dtypes of the format under this package's names, and the typed array that holds each. */
export interface SafetensorsArrays {
  readonly f64: Float64Array;
  readonly f32: Float32Array;
  /** The bits of each number, as of `'bf16'`. */
  readonly f16: Uint16Array;
  readonly bf16: Uint16Array;
  /** The bits of each number, as of all 8-bit floats. */
  readonly f8_e5m2: Uint8Array;
  readonly f8_e4m3: Uint8Array;
  readonly f8_e5m2fnuz: Uint8Array;
  readonly f8_e4m3fnuz: Uint8Array;
  readonly f8_e8m0: Uint8Array;
  /** The bytes of the file, in which the numbers are packed without gaps: four in three bytes. */
  readonly f6_e2m3: Uint8Array;
  readonly f6_e3m2: Uint8Array;
  /** As above: two in a byte. */
  readonly f4: Uint8Array;
  /** Two floats for each number: its real and its imaginary part. */
  readonly c64: Float32Array;
  readonly i64: BigInt64Array;
  readonly u64: BigUint64Array;
  readonly i32: Int32Array;
  readonly u32: Uint32Array;
  readonly i16: Int16Array;
  readonly u16: Uint16Array;
  readonly i8: Int8Array;
  readonly u8: Uint8Array;
  readonly bool: Uint8Array;
}

/** The name of a dtype in a safetensors file, in small letters: `'f32'` is `F32` there. */
export type SafetensorsDType = keyof SafetensorsArrays;

/**
 * A tensor of a safetensors file, in row-major order: 0 to 8 extents. A union of one type for each
 * dtype, so that comparing `dtype` tells TypeScript which typed array `data` is.
 */
export type SafetensorsTensor = {
  [D in SafetensorsDType]: {
    readonly dtype: D;
    readonly shape: Shape;
    readonly data: SafetensorsArrays[D];
  };
}[SafetensorsDType];

/** Those that layers and models take as parameters. */
export type SafetensorsParameter = Extract<SafetensorsTensor, { readonly dtype: FloatDType }>;

/** What a safetensors file holds. Records without a prototype: any name is a name. */
export interface SafetensorsFile {
  /** Every tensor by name, in the order of the header. */
  readonly tensors: Readonly<Record<string, SafetensorsTensor>>;
  /**
   * Those that the `loadStateDict()` of a layer or a model takes: F32, F16 and BF16 as they are, and
   * F64 rounded to 32-bit floats. Integers, booleans, complex numbers and floats of 8 bits or fewer
   * are in `tensors` alone.
   */
  readonly stateDict: Readonly<Record<string, SafetensorsParameter>>;
  /** The texts under `__metadata__`; empty where there are none. */
  readonly metadata: Readonly<Record<string, string>>;
}

/** What `writeSafetensors()` takes: tensors, typed arrays with a shape, and what was read. */
export type SafetensorsSource = Readonly<Record<string, TensorLike<DType> | SafetensorsTensor>>;

/** Options of `writeSafetensors()`. */
export interface WriteSafetensorsOptions {
  /** Texts for `__metadata__`. Libraries for Python ask for `{ format: 'pt' }`. Default none. */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  /**
   * Stores every tensor of 16-, 32- and 64-bit floats as this, rounded to nearest and ties to even.
   * Default: each as it is.
   */
  readonly dtype?: FloatDType | undefined;
}
