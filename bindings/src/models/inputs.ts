// Token ids and other arrays of the caller, checked.

import { optionError, shapeError } from '../runtime/errors.js';
import { describe } from '../runtime/tensor.js';
import { pristine, typedArrayName } from '../runtime/typed_arrays.js';
import type { ModelImage, ModelInfo } from '../types/models.js';

/** More than any model takes; a sparse array can be longer than the memory. */
const mostEntries = 2 ** 24;

/** Copies an array. Throws `E_OPTION` if it is too long. */
export function entriesOf(value: ArrayLike<unknown>, argument: string): unknown[] {
  if (value.length <= mostEntries) return Array.from(value);
  throw optionError(argument, `at most ${mostEntries} entries`, String(value.length));
}

/** Copies arrays and tensors, which a caller may change after its call, also inside of arrays and plain objects. Other values stay as they are. */
export function copied(value: unknown, depth = 8): unknown {
  if (typeof value !== 'object' || value === null || depth === 0) return value;
  if (typedArrayName(value) !== undefined) return pristine(value as Float32Array).slice();
  const copyOf = (each: unknown): unknown => copied(each, depth - 1);
  if (Array.isArray(value)) return value.length <= mostEntries ? Array.from(value, copyOf) : value;
  const { data, shape, disposed } = value as { data?: unknown; shape?: unknown; disposed?: unknown };
  if (disposed === false && shape !== undefined) return { data: copyOf(data), shape };
  if (Object.getPrototypeOf(value) !== Object.prototype) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, copyOf(each)]));
}

/** What may be given where a text may be too. */
export const textOrIds = 'a text, an Int32Array or an array of token ids';

/** Copies whole numbers from 0 to below `end`: token ids, or types of tokens. Throws `E_OPTION`. */
export function checkIds(value: unknown, argument: string, end = 2 ** 31, kinds = 'an Int32Array or an array of whole numbers'): Int32Array {
  const isInts = typedArrayName(value) === 'Int32Array';
  if (!isInts && !Array.isArray(value)) throw optionError(argument, kinds, describe(value));
  const ids = entriesOf(isInts ? pristine(value as Int32Array) : (value as unknown[]), argument);
  const wrong = ids.findIndex((id) => !(Number.isInteger(id) && (id as number) >= 0 && (id as number) < end));
  if (wrong < 0) return Int32Array.from(ids as number[]);
  throw optionError(argument, `whole numbers from 0 to ${end - 1}`, `${describe(ids[wrong])} at [${wrong}]`);
}

/** Checks the number of an input's tokens; `most`: 0 for no limit. Throws `E_OPTION`. */
export function checkTokens(count: number, most: number, argument: string): void {
  if (count > 0 && (most === 0 || count <= most)) return;
  throw optionError(argument, most > 0 ? `1 to ${most} tokens` : 'one token or more', `${count} tokens`);
}

/** Copies factors of heads, or returns undefined. Throws `E_OPTION`, `E_SHAPE`. */
export function checkScales(value: unknown, { numLayers, numHeads, encoder }: ModelInfo): Float32Array | undefined {
  const argument = 'headScales';
  if (value === undefined) return undefined;
  if (typedArrayName(value) !== 'Float32Array') throw optionError(argument, 'a Float32Array', describe(value));
  const scales = pristine(value as Float32Array).slice();
  const wrong = scales.find((scale) => !Number.isFinite(scale));
  if (wrong !== undefined) throw optionError(argument, 'finite numbers', String(wrong));
  const count = numLayers * numHeads;
  if (scales.length === count || (encoder && scales.length === 2 * count)) return scales;
  const expected = encoder ? `${count} or ${2 * count} numbers, one or two` : `${count} numbers, one`;
  throw shapeError(argument, `${expected} per layer and head`, String(scales.length));
}

/** Copies an image of the caller. Throws `E_OPTION`, `E_SHAPE`. */
export function copyImage(value: unknown, argument: string): ModelImage {
  const { data, width, height } = (typeof value === 'object' && value !== null ? value : {}) as Partial<ModelImage>;
  const isBytes = ['Uint8Array', 'Uint8ClampedArray'].includes(typedArrayName(data) ?? '');
  const isSide = (side: unknown): side is number => Number.isInteger(side) && (side as number) >= 1;
  if (!isBytes || !isSide(width) || !isSide(height)) throw optionError(argument, 'an ImageData, or bytes with width and height', describe(value));
  const bytes = pristine(data as Uint8Array);
  const count = width * height;
  if (bytes.length === 3 * count || bytes.length === 4 * count) return { data: bytes.slice(), width, height };
  throw shapeError(`${argument}.data`, `${3 * count} bytes of RGB or ${4 * count} of RGBA`, String(bytes.length));
}
