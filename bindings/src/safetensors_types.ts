// The types of reading and writing safetensors files.

import type { DType, FloatDType, Shape, TensorLike } from './tensor_types.js';

/** The dtypes of the format, under this package's names, and the typed array of each. */
export interface SafetensorsArrays {
  readonly f64: Float64Array;
  readonly f32: Float32Array;
  /** 16- and 8-bit floats: the bits of each number. */
  readonly f16: Uint16Array;
  readonly bf16: Uint16Array;
  readonly f8_e5m2: Uint8Array;
  readonly f8_e4m3: Uint8Array;
  readonly f8_e5m2fnuz: Uint8Array;
  readonly f8_e4m3fnuz: Uint8Array;
  readonly f8_e8m0: Uint8Array;
  /** 6-bit floats: the bytes of the file, in which four numbers are packed into three bytes. */
  readonly f6_e2m3: Uint8Array;
  readonly f6_e3m2: Uint8Array;
  /** 4-bit floats: the bytes of the file, two numbers per byte. */
  readonly f4: Uint8Array;
  /** Complex numbers: two floats each, the real and the imaginary part. */
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

/** The name of a dtype in a safetensors file, in lower case: `'f32'` for `F32`. */
export type SafetensorsDType = keyof SafetensorsArrays;

/**
 * A tensor of a safetensors file, row-major, with 0 to 8 extents. It is a union with one member per
 * dtype: after a comparison of `dtype`, TypeScript knows the type of `data`.
 */
export type SafetensorsTensor = {
  [D in SafetensorsDType]: {
    readonly dtype: D;
    readonly shape: Shape;
    readonly data: SafetensorsArrays[D];
  };
}[SafetensorsDType];

/** The tensors of dtypes that modules take as parameters. */
export type SafetensorsParameter = Extract<SafetensorsTensor, { readonly dtype: FloatDType }>;

/** The contents of a safetensors file. The records have no prototype, so any name is safe as a key. */
export interface SafetensorsFile {
  /** Every tensor by name, in the order of the header. */
  readonly tensors: Readonly<Record<string, SafetensorsTensor>>;
  /**
   * The tensors that `loadStateDict()` takes: F32, F16 and BF16 unchanged, and F64 rounded to 32-bit
   * floats. Integers, booleans, complex numbers and floats of 8 bits or fewer are only in `tensors`.
   */
  readonly stateDict: Readonly<Record<string, SafetensorsParameter>>;
  /** The strings under `__metadata__`; empty if the file has none. */
  readonly metadata: Readonly<Record<string, string>>;
}

/**
 * The tensors to write, by name: tensors, typed arrays with a shape, or tensors from `readSafetensors()`.
 */
export type SafetensorsSource = Readonly<Record<string, TensorLike<DType> | SafetensorsTensor>>;

/** Options of `writeSafetensors()`. */
export interface WriteSafetensorsOptions {
  /** Strings for `__metadata__`. Python's libraries expect `{ format: 'pt' }`. Default none. */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  /**
   * The dtype in which every tensor of 16-, 32- or 64-bit floats is stored, rounded to nearest, ties to
   * even. Default: each keeps its dtype.
   */
  readonly dtype?: FloatDType | undefined;
}
