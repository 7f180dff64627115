// Checks of options objects. An unknown name is an error, and no value is converted.

import type { Count, Int64 } from '../types/wire.js';
import { MultiheadError, optionError } from './errors.js';
import { maxExtent } from './shape.js';
import { describe, WasmTensor } from './tensor.js';
import { quoted } from './text.js';

/** What is known of an option besides its name. */
export interface Entry {
  /** The names in the option's value if it is an object with arrays, or with checked names. */
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

const list = (known: Known): string => Object.keys(known).join(', ');

/** The names without those that `elsewhere` explains. */
export const without = <K extends object, E extends string>(known: K, elsewhere: Readonly<Record<E, unknown>>): Omit<K, E> =>
  Object.fromEntries(Object.entries(known).filter(([name]) => !Object.hasOwn(elsewhere, name))) as Omit<K, E>;

/**
 * Checks the names of a call's options like checkOptions(), and returns a copy of the object: a call that goes on later does
 * not see what its caller changes in it. Of an object of a class, the copy has the properties of the prototype, too.
 */
export function readOptions<T extends object>(
  options: T | undefined,
  known: Names<NoInfer<T>>,
  argument: string,
  elsewhere?: Readonly<Record<string, string>>,
): T {
  if (options === undefined) return {} as T;
  checkOptions(options, known, argument, elsewhere);
  const copy = { ...options };
  const prototype: unknown = Object.getPrototypeOf(options);
  if (prototype === Object.prototype || prototype === null) return copy;
  for (const name of Object.keys(known) as (keyof T)[]) if (name in options) copy[name] = options[name];
  return copy;
}

/**
 * Throws `E_OPTION` unless `options` is an object whose properties are all in `known`.
 *
 * @param elsewhere names that only other calls know, each with advice for this call
 */
export function checkOptions(options: unknown, known: Known, argument: string, elsewhere: Readonly<Record<string, string>> = {}): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options) || options instanceof WasmTensor) {
    throw optionError(argument, `an object with some of ${list(known)}`, describe(options));
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
export function checkNames<N extends string>(value: unknown, known: readonly N[], argument: string): readonly N[] {
  if (Array.isArray(value) && value.every((name: N) => known.includes(name))) return value as N[];
  const wrong: unknown = Array.isArray(value) ? value.find((name: N) => !known.includes(name)) : value;
  throw optionError(argument, `an array of some of ${known.join(', ')}`, describe(wrong));
}

/** The names of an enumeration of tables.ts, in its order. */
export const namesOf = <N extends string>(enumeration: Readonly<Record<N, number>>): readonly N[] => Object.keys(enumeration) as N[];

/** Checks a name that must be in `known`. Throws `E_OPTION`. */
export function checkChoice<N extends string>(value: unknown, known: readonly N[], argument: string): N {
  if (known.includes(value as N)) return value as N;
  throw optionError(argument, known.map((name) => `"${name}"`).join(' or '), describe(value));
}

/** Checks for a whole number from `least` to 2³¹ − 1. Throws `E_OPTION`. */
export function checkCount(value: unknown, argument: string, least = 1): Count {
  if (Number.isInteger(value) && (value as number) >= least && (value as number) <= maxExtent) {
    return value as Count;
  }
  throw optionError(argument, `a whole number ≥ ${least} (and below 2³¹)`, describe(value));
}

/** Checks for true or false. Throws `E_OPTION`. */
export function checkFlag(value: unknown, argument: string): boolean {
  if (typeof value === 'boolean') return value;
  throw optionError(argument, 'true or false', describe(value));
}

/** Checks for a function, or undefined. Throws `E_OPTION`. */
export function checkCallback(value: unknown, argument: string): void {
  if (value !== undefined && typeof value !== 'function') throw optionError(argument, 'a function', describe(value));
}

/** Checks for a whole number of any sign; the core checks its range. Throws `E_OPTION`. */
export function checkWhole(value: unknown, argument: string): Int64 {
  if (Number.isSafeInteger(value)) return value as Int64;
  throw optionError(argument, 'a whole number', describe(value));
}

/** Checks for a number; the core checks its range. Throws `E_OPTION`. */
export function checkNumber(value: unknown, argument: string, expected = 'a finite number'): number {
  if (typeof value === 'number') return value;
  throw optionError(argument, expected, describe(value));
}
