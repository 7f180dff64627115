// Checks of options objects. An unknown name is an error, and no value is converted.

import type { Count, Int64 } from '../types/wire.js';
import { isCoreObject } from './core_object.js';
import { MultiheadError } from './errors.js';
import { maxExtent } from './shape.js';
import { coreOf, describe, keepClass, unreadable } from './tensor.js';
import { quoted } from './text.js';

/** What is known of an option besides its name. */
export interface Entry {
  /** The names in the option's value if it is an object, or an array of such objects. */
  readonly inner?: Known;
  /** A schema of options has more, such as how an option is read. */
  readonly [more: string]: unknown;
}

/** The names that an options object may have, in the order in which messages list them. */
export type Known = Readonly<Record<string, Entry>>;

/** The {@link Known} names of an options type: that one is missing is a type error. */
export type Names<T> = { readonly [N in keyof T]-?: Entry };

/** An option whose value has no names of its own. */
export const plain: Entry = {};

/** An option or argument that takes a TensorLike. */
export const tensorEntry = { inner: { data: plain, shape: plain, dtype: plain } } satisfies Entry;

const list = (known: Known): string => Object.keys(known).join(', ');

/** The names without those that `elsewhere` explains. */
export const without = <K extends object, E extends string>(
  known: K,
  elsewhere: Readonly<Record<E, unknown>>,
): Omit<K, E> =>
  Object.fromEntries(Object.entries(known).filter(([name]) => !Object.hasOwn(elsewhere, name))) as Omit<K, E>;

/** Options without own properties. Inherits anything added to Object.prototype, unlike the copies. */
const noOptions: Readonly<Record<PropertyKey, unknown>> = Object.freeze({});

const noNames: Known = {};

/** Levels of nesting that are copied; the deepest option is capture[0].heads[0]. */
const mostLevels = 4;

/** Limit on array entries and object properties that the copies of one call may have, over all levels. */
const mostCopied = 2 ** 17;

/**
 * Counts the entries that a call copies. An array that is sparse, a proxy, or given many times can have far more
 * entries than its memory suggests.
 */
export class CopyBudget {
  readonly #argument: string;
  #copied = 0;

  constructor(argument: string) {
    this.#argument = argument;
  }

  /** Throws `E_OPTION` if `count` more would exceed the limit. */
  take(count: number): void {
    if (this.#copied + count <= mostCopied) {
      this.#copied += count;
      return;
    }
    throw new MultiheadError('E_OPTION', {
      argument: this.#argument,
      expected: `at most ${mostCopied} entries and properties in all`,
      got: `${count} more after ${this.#copied}`,
    });
  }

  /** Copies the entries of an array; reads each once. Throws `E_OPTION`. */
  entries(array: readonly unknown[], copy: (entry: unknown) => unknown): unknown[] {
    const { length } = array;
    // A proxy may report any value as its length.
    this.take(Number.isSafeInteger(length) && length >= 0 ? length : Infinity);
    const copied: unknown[] = []; // Array.from() takes half a microsecond for one entry
    for (let index = 0; index < length; ++index) copied.push(copy(array[index]));
    return copied;
  }
}

/**
 * Copies options. Later reads of the copy cannot run code of the caller, such as a getter, because each property is
 * read once, here. Objects and arrays are copied to the depth that calls read; typed arrays and objects of this package
 * are not copied. Throws `E_OPTION` if reading a property throws.
 */
export function copyOf<T>(value: T, argument: string, known: Known, levels = mostLevels): T {
  if (typeof value !== 'object' || value === null) return value;
  try {
    return copyLevel(value, new CopyBudget(argument), known, levels) as T;
  } catch (cause) {
    throw unreadable(cause, argument);
  }
}

function copyLevel(
  value: unknown,
  budget: CopyBudget,
  known: Known,
  levels: number,
): unknown {
  if (typeof value !== 'object' || value === null || levels === 0) return value;
  if (coreOf(value) !== undefined || ArrayBuffer.isView(value) || isCoreObject(value)) return value;
  if (Array.isArray(value)) return budget.entries(value, (each) => copyLevel(each, budget, known, levels - 1));

  const copy: Record<string, unknown> = { ...value };
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) {
    keepClass(copy, value);
    // A proxy of a tensor throws an error that says so, where options are expected.
    if ('data' in value && !Object.hasOwn(known, 'data')) void value.data;
    for (const name in known) {
      if (!Object.hasOwn(known, name) || Object.hasOwn(copy, name) || !(name in value)) continue;
      const each = (value as Record<string, unknown>)[name];
      if (each !== noOptions[name]) copy[name] = each;
    }
  }
  for (const name in copy) {
    budget.take(1);
    const entry = Object.hasOwn(known, name) ? known[name] : undefined;
    if (!Object.hasOwn(copy, name)) {
      if (entry !== undefined) copy[name] = undefined;
      continue;
    }
    const each = copy[name];
    if (typeof each !== 'object' || each === null || coreOf(each) !== undefined) continue;
    if (entry !== undefined) copy[name] = copyLevel(each, budget, entry.inner ?? noNames, levels - 1);
  }
  return copy;
}

/**
 * Copies options without copying their values, such as signals, and checks them like checkOptions(). Throws `E_OPTION`
 * if reading a property throws.
 */
export function readFlat<T extends object>(
  given: T,
  known: Names<NoInfer<T>>,
  argument: string,
): T {
  const copy = copyOf(given, argument, known, 1);
  checkOptions(copy, known, argument);
  return copy;
}

/** Copies the options of a call, and checks their names like checkOptions(). */
export function readOptions<T extends object>(
  options: T | undefined,
  known: Names<NoInfer<T>>,
  argument: string,
  elsewhere?: Readonly<Record<string, string>>,
): T {
  // Missing options need no copy, unless something was added to Object.prototype.
  if (options === undefined && allKnown(noOptions, noNames)) return noOptions as T;
  const copy = copyOf(options === undefined ? ({} as T) : options, argument, known);
  if (typeof copy === 'object' && copy !== null && !Array.isArray(copy)) {
    if (allKnown(copy, known)) return copy;
  }
  checkOptions(copy, known, argument, elsewhere);
  return copy;
}

/** `copy` has only own properties, so for-in finds the names of Object.keys() without allocating an array. */
function allKnown(copy: object, known: Known): boolean {
  for (const name in copy) if (!Object.hasOwn(known, name)) return false;
  return true;
}

/**
 * Throws `E_OPTION` unless `options` is an object whose properties are all in `known`.
 *
 * @param elsewhere names that only other calls know, each with advice for this call
 */
export function checkOptions(
  options: unknown,
  known: Known,
  argument: string,
  elsewhere: Readonly<Record<string, string>> = {},
): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: `an object with some of ${list(known)}`,
      got: describe(options),
    });
  }
  const unknown = Object.keys(options).find((name) => !Object.hasOwn(known, name));
  if (unknown === undefined) return;
  const advice = Object.hasOwn(elsewhere, unknown) ? ` (${elsewhere[unknown]})` : '';
  throw new MultiheadError('E_OPTION', {
    argument: unknown,
    expected: `an option named ${list(known)}`,
    got: quoted(unknown),
    message: `${argument}: there is no ${quoted(unknown)}${advice}; known are ${list(known)}`,
  });
}

/** Checks an array of names that must be in `known`. Throws `E_OPTION`. */
export function checkNames<N extends string>(
  value: unknown,
  known: readonly N[],
  argument: string,
): readonly N[] {
  if (Array.isArray(value) && value.every((name: N) => known.includes(name))) return value as N[];
  const wrong: unknown = Array.isArray(value)
    ? value.find((name: N) => !known.includes(name))
    : value;
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: `an array of some of ${known.join(', ')}`,
    got: describe(wrong),
  });
}

/** The names of an enumeration of tables.ts, in its order. */
export const namesOf = <N extends string>(enumeration: Readonly<Record<N, number>>): readonly N[] =>
  Object.keys(enumeration) as N[];

/** Checks a name that must be in `known`. Throws `E_OPTION`. */
export function checkChoice<N extends string>(
  value: unknown,
  known: readonly N[],
  argument: string,
): N {
  if (known.includes(value as N)) return value as N;
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: known.map((name) => `"${name}"`).join(' or '),
    got: describe(value),
  });
}

/** Checks for a whole number from `least` to 2³¹ − 1. Throws `E_OPTION`. */
export function checkCount(value: unknown, argument: string, least = 1): Count {
  if (Number.isInteger(value) && (value as number) >= least && (value as number) <= maxExtent) {
    return value as Count;
  }
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: `a whole number ≥ ${least} (and below 2³¹)`,
    got: describe(value),
  });
}

/** Checks for true or false. Throws `E_OPTION`. */
export function checkFlag(value: unknown, argument: string): boolean {
  if (typeof value === 'boolean') return value;
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: 'true or false',
    got: describe(value),
  });
}

/** Checks for a whole number of any sign; the core checks its range. Throws `E_OPTION`. */
export function checkWhole(value: unknown, argument: string): Int64 {
  if (Number.isSafeInteger(value)) return value as Int64;
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: 'a whole number',
    got: describe(value),
  });
}

/** Checks for a number; the core checks its range. Throws `E_OPTION`. */
export function checkNumber(
  value: unknown,
  argument: string,
  expected = 'a finite number',
): number {
  if (typeof value === 'number') return value;
  throw new MultiheadError('E_OPTION', { argument, expected, got: describe(value) });
}
