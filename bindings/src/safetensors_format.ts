// What reading and writing safetensors have in common
// (huggingface.co/docs/safetensors, "Format"): eight bytes of header length, little-endian; a header
// in JSON; the tensors' bytes, little-endian and row-major, side by side.

import { MultiheadError } from './errors.js';
import type { SafetensorsTensor } from './safetensors_types.js';
import { describe, parameterRanks } from './tensor.js';

export const lengthBytes = 8;
export const metadataName = '__metadata__';

/** The format's own limit, for headers that are made to exhaust a parser. */
export const mostHeaderBytes = 100_000_000;

export type SafetensorsDType = SafetensorsTensor['dtype'];

interface StoredType {
  readonly name: string;
  readonly array: new (
    buffer: ArrayBufferLike,
    byteOffset: number,
    length: number,
  ) => SafetensorsTensor['data'];
  readonly bytes: number;
}

export const storedTypes: Readonly<Record<SafetensorsDType, StoredType>> = {
  f32: { name: 'F32', array: Float32Array, bytes: 4 },
  f16: { name: 'F16', array: Uint16Array, bytes: 2 },
  bf16: { name: 'BF16', array: Uint16Array, bytes: 2 },
  i32: { name: 'I32', array: Int32Array, bytes: 4 },
  bool: { name: 'BOOL', array: Uint8Array, bytes: 1 },
};

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
