// The types of reading and writing safetensors files.

import type { PlatformAbortSignal, PlatformBlob, PlatformResponse } from './platform.js';
import type { DType, Float16Numbers, FloatDType, Shape, TensorLike } from './tensor.js';

/** The dtypes of the format, under this package's names, and the typed array of each. */
export interface SafetensorsArrays {
  /** 64-bit floats. */
  readonly f64: Float64Array;
  /** 32-bit floats. */
  readonly f32: Float32Array;
  /** IEEE 754 binary16: the bits of each number. */
  readonly f16: Uint16Array;
  /** bfloat16: the bits of each number. */
  readonly bf16: Uint16Array;
  /** 8-bit floats (arXiv:2209.05433): the bits of each number. */
  readonly f8_e5m2: Uint8Array;
  /** 8-bit floats (arXiv:2209.05433): the bits of each number. */
  readonly f8_e4m3: Uint8Array;
  /** 8-bit floats (arXiv:2206.02915): the bits of each number. */
  readonly f8_e5m2fnuz: Uint8Array;
  /** 8-bit floats (arXiv:2206.02915): the bits of each number. */
  readonly f8_e4m3fnuz: Uint8Array;
  /** 8-bit scales of the OCP Microscaling formats: the bits of each number. */
  readonly f8_e8m0: Uint8Array;
  /** 6-bit floats: the bytes of the file, in which four numbers are packed into three bytes. */
  readonly f6_e2m3: Uint8Array;
  /** 6-bit floats: the bytes of the file, four numbers packed into three bytes. */
  readonly f6_e3m2: Uint8Array;
  /** 4-bit floats: the bytes of the file, two numbers per byte. */
  readonly f4: Uint8Array;
  /** Complex numbers: two floats each, the real and the imaginary part. */
  readonly c64: Float32Array;
  /** 64-bit signed integers. */
  readonly i64: BigInt64Array;
  /** 64-bit unsigned integers. */
  readonly u64: BigUint64Array;
  /** 32-bit signed integers. */
  readonly i32: Int32Array;
  /** 32-bit unsigned integers. */
  readonly u32: Uint32Array;
  /** 16-bit signed integers. */
  readonly i16: Int16Array;
  /** 16-bit unsigned integers. */
  readonly u16: Uint16Array;
  /** 8-bit signed integers. */
  readonly i8: Int8Array;
  /** 8-bit unsigned integers. */
  readonly u8: Uint8Array;
  /** Booleans: one byte each. */
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
    /** The name of the dtype in the file, in lower case. */
    readonly dtype: D;
    /** Extents, outermost first. */
    readonly shape: Shape;
    /** Row-major. */
    readonly data: SafetensorsArrays[D];
  };
}[SafetensorsDType];

/** The tensors of dtypes that modules take as parameters. */
export type SafetensorsParameter = Extract<SafetensorsTensor, Record<'dtype', FloatDType>>;

/** The contents of a safetensors file. The records have no prototype, so any name is safe as a key. */
export interface SafetensorsFile {
  /** Every tensor by name, in the order of the header. */
  readonly tensors: Readonly<Record<string, SafetensorsTensor>>;
  /**
   * The tensors that `loadStateDict()` accepts: F32, F16 and BF16 unchanged, and F64 rounded to 32-bit floats.
   * Integers, booleans, complex numbers and floats of 8 bits or fewer are only in `tensors`.
   */
  readonly stateDict: Readonly<Record<string, SafetensorsParameter>>;
  /** The strings under `__metadata__`; empty if the file has none. */
  readonly metadata: Readonly<Record<string, string>>;
}

/** A tensor of a file of which the numbers are not read yet. */
export interface SafetensorsEntry {
  /** The name of the dtype in the file, in lower case. */
  readonly dtype: SafetensorsDType;
  /** Extents, outermost first. */
  readonly shape: Shape;
}

/** Options of `openSafetensors()`. */
export interface OpenSafetensorsOptions {
  /** Aborting rejects the calls that wait, and later ones, with `E_ABORTED`, and ends a response. Default none. */
  readonly signal?: PlatformAbortSignal | undefined;
}

/** A safetensors file of which only the header was read. The records have no prototype. */
export interface SafetensorsReader {
  /** Every tensor by name, in the order of the header. */
  readonly entries: Readonly<Record<string, SafetensorsEntry>>;
  /** The strings under `__metadata__`; empty if the file has none. */
  readonly metadata: Readonly<Record<string, string>>;
  /**
   * Reads one tensor of a Blob. Its `data` is a copy.
   *
   * @throws {MultiheadError} `E_OPTION` if the file has no such tensor, or is a Response; `E_LOAD`, `E_ABORTED`,
   * `E_MEMORY`
   */
  read(name: string): Promise<SafetensorsTensor>;
  /**
   * Reads all tensors, one at a time, in the order of their bytes in the file. A Response can be read once; leaving the
   * loop early ends its transfer.
   *
   * @throws {MultiheadError} `E_FORMAT` if a response ends too early or too late; `E_LOAD`, `E_ABORTED`, `E_MEMORY`;
   * `E_OPTION` for a second loop over a Response
   */
  [Symbol.asyncIterator](): AsyncGenerator<[name: string, tensor: SafetensorsTensor], void, undefined>;
  /** Ends the transfer of a Response whose tensors are not read. Does nothing for a Blob. */
  close(): Promise<void>;
}

/**
 * Reads the header of a safetensors file, and later one tensor at a time, so that memory never holds the whole file.
 * Checks everything that `readSafetensors()` checks. A `Blob` may be a `File`, or come from `fs.openAsBlob()` of Node.
 * Needs no `load()`.
 *
 * @throws {MultiheadError} `E_FORMAT` as `readSafetensors()`; `E_LOAD` for a response with an HTTP error and for a
 * source that cannot be read; `E_OPTION` for a source of another type, or a response that was read; `E_ABORTED`
 */
export type OpenSafetensors = (source: PlatformBlob | PlatformResponse, options?: OpenSafetensorsOptions) => Promise<SafetensorsReader>;

/**
 * The tensors to write, by name: tensors, typed arrays with a shape, or tensors from `readSafetensors()`.
 */
export type SafetensorsSource = Readonly<Record<string, TensorLike<DType> | Float16Numbers | SafetensorsTensor>>;

/** Options of `writeSafetensors()`. */
export interface WriteSafetensorsOptions {
  /** Strings for `__metadata__`. Python's libraries expect `{ format: 'pt' }`. Default none. */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  /**
   * Dtype in which every tensor of 16-, 32- or 64-bit floats is stored, rounded to nearest, ties to even. Default: each
   * tensor keeps its dtype.
   */
  readonly dtype?: FloatDType | undefined;
}
