// Token ids of the caller, checked and copied to the core.

import { MultiheadError } from '../runtime/errors.js';
import { noSpan, type Operands } from '../runtime/operands.js';
import { describe } from '../runtime/tensor.js';
import type { Span } from '../types/wire.js';

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

export const ints = (operands: Operands, ids: Int32Array, argument: string): Span<'i32'> =>
  ids.length === 0 ? noSpan : operands.span(ids, 'i32', argument);
