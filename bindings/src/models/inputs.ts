// Token ids and other arrays of the caller, checked.

import { MultiheadError } from '../runtime/errors.js';
import { describe } from '../runtime/tensor.js';
import { typedArrayName } from '../runtime/typed_arrays.js';

/** More than any model takes; a sparse array can be longer than the memory. */
const mostEntries = 2 ** 24;

/** Copies an array; reads each entry once. Throws `E_OPTION` if it is too long. */
export function entriesOf(value: ArrayLike<unknown>, argument: string): unknown[] {
  if (value.length <= mostEntries) return Array.from(value);
  throw new MultiheadError('E_OPTION', { argument, expected: `at most ${mostEntries} entries`, got: String(value.length) });
}

/** Checks token ids; the core checks their range. Throws `E_OPTION`. */
export function checkIds(value: unknown, argument: string): Int32Array {
  const isArray = value instanceof Int32Array || Array.isArray(value);
  const ids = isArray ? entriesOf(value as ArrayLike<unknown>, argument) : undefined;
  if (ids?.every((id) => Number.isInteger(id) && Math.abs(id as number) < 2 ** 31)) return Int32Array.from(ids as number[]);
  const wrong = ids?.find((id) => !Number.isInteger(id));
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: 'a text, an Int32Array or an array of token ids',
    got: describe(wrong === undefined ? value : wrong),
  });
}

/** Checks factors of heads; the core checks their number. Throws `E_OPTION`. */
export function checkScales(value: unknown): Float32Array | undefined {
  if (value === undefined || typedArrayName(value) === 'Float32Array') return value as Float32Array | undefined;
  throw new MultiheadError('E_OPTION', { argument: 'headScales', expected: 'a Float32Array', got: describe(value) });
}
