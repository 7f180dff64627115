// What reading and writing safetensors have in common
// (huggingface.co/docs/safetensors, "Format"): eight bytes of header length, little-endian; a header
// in JSON; the tensors' bytes, little-endian and row-major, side by side.

import { MultiheadError } from './errors.js';
import type { SafetensorsArrays, SafetensorsDType } from './safetensors_types.js';
import { describe, parameterRanks } from './tensor.js';
import type { Shape } from './tensor_types.js';

export const lengthBytes = 8;
export const metadataName = '__metadata__';

/** The format's own limit, for headers that are made to exhaust a parser. */
export const mostHeaderBytes = 100_000_000;

interface TypedArrayClass<A> {
  readonly name: string;
  readonly BYTES_PER_ELEMENT: number;
  new (buffer: ArrayBufferLike, byteOffset: number, length: number): A;
}

interface StoredType<A> {
  /** Of one number in the file; those of fewer than 8 are packed without gaps. */
  readonly bits: number;
  readonly array: TypedArrayClass<A>;
}

/** What every dtype of the format is stored as. The file has their names in capitals. */
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

/** As the file has it. */
export const storedName = (dtype: SafetensorsDType): string => dtype.toUpperCase();

/**
 * How many bytes the numbers of a shape fill: a fraction where the last one ends inside of a byte,
 * infinite where there are more bits than JavaScript counts exactly.
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

export const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** Minus zero is not how a number of bytes is written. */
export const isCount = (value: unknown): value is number =>
  Number.isSafeInteger(value) && (value as number) >= 0 && !Object.is(value, -0);

/** What UTF-8 can say: no half of a surrogate pair alone. */
export const isUnicode = (text: string): boolean => !/\p{Surrogate}/u.test(text);

/** Own properties only: a name may be "constructor", or "__proto__". */
export const emptyRecord = <T>(): Record<string, T> => Object.create(null) as Record<string, T>;

/** A value of a header in a few words. */
export function inWords(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) {
    const few: unknown[] = value.slice(0, parameterRanks.most + 1);
    const items = few.map((item) => (typeof item === 'object' ? '…' : inWords(item)));
    return `[${items.join(', ')}${few.length < value.length ? ', …' : ''}]`;
  }
  if (isObject(value)) return 'an object';
  return typeof value === 'string' ? JSON.stringify(value.slice(0, 60)) : describe(value);
}
