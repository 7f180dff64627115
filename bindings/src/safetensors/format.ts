// The safetensors format (huggingface.co/docs/safetensors, "Format"), for reading and writing: the
// header's length in eight bytes, little-endian; the header in JSON; then the tensors' bytes,
// little-endian and row-major, without gaps.

import { MultiheadError } from '../runtime/errors.js';
import { parameterRanks } from '../runtime/shape.js';
import { describe } from '../runtime/tensor.js';
import type { SafetensorsArrays, SafetensorsDType } from '../types/safetensors.js';
import type { Shape } from '../types/tensor.js';

export const lengthBytes = 8;
export const metadataName = '__metadata__';

/** The format's limit on the length of a header; it protects parsers from denial of service. */
export const mostHeaderBytes = 100_000_000;

/** After the size of a file that ends too early. */
export const cutOff = ', as of a download that was cut off';

interface TypedArrayClass<A> {
  readonly name: string;
  readonly BYTES_PER_ELEMENT: number;
  new (buffer: ArrayBufferLike, byteOffset: number, length: number): A;
}

interface StoredType<A> {
  /** Bits per number in the file; numbers of fewer than 8 bits are packed without gaps. */
  readonly bits: number;
  readonly array: TypedArrayClass<A>;
}

/** Storage of each dtype of the format. */
export const storedTypes: {
  readonly [D in SafetensorsDType]: StoredType<SafetensorsArrays[D]>;
} = {
  f64: { bits: 64, array: Float64Array },
  f32: { bits: 32, array: Float32Array },
  f16: { bits: 16, array: Uint16Array },
  bf16: { bits: 16, array: Uint16Array },
  f8_e5m2: { bits: 8, array: Uint8Array },
  f8_e4m3: { bits: 8, array: Uint8Array },
  f8_e5m2fnuz: { bits: 8, array: Uint8Array },
  f8_e4m3fnuz: { bits: 8, array: Uint8Array },
  f8_e8m0: { bits: 8, array: Uint8Array },
  f6_e2m3: { bits: 6, array: Uint8Array },
  f6_e3m2: { bits: 6, array: Uint8Array },
  f4: { bits: 4, array: Uint8Array },
  c64: { bits: 64, array: Float32Array },
  i64: { bits: 64, array: BigInt64Array },
  u64: { bits: 64, array: BigUint64Array },
  i32: { bits: 32, array: Int32Array },
  u32: { bits: 32, array: Uint32Array },
  i16: { bits: 16, array: Int16Array },
  u16: { bits: 16, array: Uint16Array },
  i8: { bits: 8, array: Int8Array },
  u8: { bits: 8, array: Uint8Array },
  bool: { bits: 8, array: Uint8Array },
};

export const storedDTypes = Object.keys(storedTypes) as readonly SafetensorsDType[];

/** A dtype's name in the file. */
export const storedName = (dtype: SafetensorsDType): string => dtype.toUpperCase();

/**
 * Size of a tensor in bytes. Not a whole number if the last element ends inside a byte; Infinity if the number of bits
 * exceeds 2⁵³ − 1, beyond which JavaScript numbers are not exact.
 */
export function storedBytes(dtype: SafetensorsDType, shape: Shape): number {
  let bits = storedTypes[dtype].bits;
  for (const extent of shape) {
    bits *= extent;
    if (bits > Number.MAX_SAFE_INTEGER) return Infinity;
  }
  return bits / 8;
}

export const formatError = (argument: string, expected: string, got: string): MultiheadError =>
  new MultiheadError('E_FORMAT', { argument, expected, got });

export const isObject = (value: unknown): value is Record<string, unknown> => typeof value === 'object' && value !== null && !Array.isArray(value);

/** True if a JSON value is a whole number ≥ 0 that is exact in JavaScript; false for −0. */
export const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0 && !Object.is(value, -0);

/** True if UTF-8 can encode the text: it has no unpaired surrogate. */
export const isUnicode = (text: string): boolean => !/\p{Surrogate}/u.test(text);

/** A record without a prototype, because a name may be "constructor" or "__proto__". */
export const emptyRecord = <T>(): Record<string, T> => Object.create(null) as Record<string, T>;

/** A short description of a value of the header, for error messages. */
export function inWords(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) {
    const few: unknown[] = value.slice(0, parameterRanks.most + 1);
    const items = few.map((item) => (typeof item === 'object' ? '…' : inWords(item)));
    return `[${items.join(', ')}${few.length < value.length ? ', …' : ''}]`;
  }
  return isObject(value) ? 'an object' : describe(value);
}
