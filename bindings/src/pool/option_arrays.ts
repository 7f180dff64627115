// The arrays in the options of a call that belong to an axis, by the schema of the options.

import { type ArrayEntry, attentionSchema } from '../attention/options.js';
import type { Entry, Known } from '../runtime/options.js';
import { pristine, type TypedArray } from '../runtime/typed_arrays.js';
import type { MaskOptions } from '../types/index.js';
import type { Range } from './shared/parts.js';

type Axis = ArrayEntry['axis'];

const isArrayEntry = (entry: Entry | undefined): entry is ArrayEntry => entry !== undefined && 'axis' in entry;

/** The names in an option's value if some of them are arrays that belong to an axis. */
const arraysIn = (entry: Entry | undefined): Known | undefined =>
  entry?.inner !== undefined && Object.values(entry.inner).some(isArrayEntry) ? entry.inner : undefined;

/** Copies options, with `replace` applied to each value that belongs to an axis, except true and false. */
function replaced<T extends object>(options: T, known: Known, replace: (value: unknown, entry: ArrayEntry) => unknown): T {
  const entries = Object.entries(options).map(([name, value]) => {
    const entry = Object.hasOwn(known, name) ? known[name] : undefined;
    if (value === undefined || typeof value === 'boolean') return [name, value];
    if (isArrayEntry(entry)) return [name, replace(value, entry)];
    const inner = arraysIn(entry);
    const isObject = typeof value === 'object' && value !== null;
    return [name, inner !== undefined && isObject ? replaced(value, inner, replace) : value];
  });
  return Object.fromEntries(entries) as T;
}

/** Copies checked options, with the arrays of each axis in `replace` replaced. */
export const withArrays = <T extends Partial<MaskOptions>>(options: T, replace: { readonly [A in Axis]?: (array: TypedArray) => TypedArray }): T =>
  replaced(options, attentionSchema, (value, { axis }) => {
    const own = replace[axis];
    return own === undefined ? value : own(value as TypedArray);
  });

/** Copies the values of some indices of an axis; `each` is the number of values for an index. */
export const sliceOfArray = (array: TypedArray, [first, end]: Range, each = 1): TypedArray =>
  (pristine(array) as Float32Array | Int32Array).slice(first * each, end * each);
