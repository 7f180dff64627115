// Checks of options objects: unknown names are errors, nothing is converted silently.

import { MultiheadError } from './errors.js';
import { describe, maxExtent } from './tensor.js';

const list = (names: readonly string[]): string => names.join(', ');

/**
 * Throws `E_OPTION` for what is not an object, or has a property that is not in `known`.
 *
 * @param elsewhere names that other calls know, and what to do instead in this one
 */
export function checkOptions(
  options: unknown,
  known: readonly string[],
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
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown === undefined) return;
  const advice = Object.hasOwn(elsewhere, unknown) ? ` (${elsewhere[unknown]})` : '';
  throw new MultiheadError('E_OPTION', {
    argument: unknown,
    expected: `an option named ${list(known)}`,
    got: `"${unknown}"`,
    message: `${argument}: there is no "${unknown}"${advice}; known are ${list(known)}`,
  });
}

/** A list of names, each one of `known`; throws `E_OPTION`. */
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
    expected: `an array of some of ${list(known)}`,
    got: describe(wrong),
  });
}

/** One of `known`; throws `E_OPTION`. */
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

/** A whole number from `least` to 2³¹ − 1; throws `E_OPTION`. */
export function checkCount(value: unknown, argument: string, least = 1): number {
  if (Number.isInteger(value) && (value as number) >= least && (value as number) <= maxExtent) {
    return value as number;
  }
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: `a whole number ≥ ${least} (and below 2³¹)`,
    got: describe(value),
  });
}

/** True or false; throws `E_OPTION`. */
export function checkFlag(value: unknown, argument: string): boolean {
  if (typeof value === 'boolean') return value;
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: 'true or false',
    got: describe(value),
  });
}

/** A whole number of any sign, for the core to check; throws `E_OPTION`. */
export function checkWhole(value: unknown, argument: string): number {
  if (Number.isSafeInteger(value)) return value as number;
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: 'a whole number',
    got: describe(value),
  });
}

/** A number, for the core to check; throws `E_OPTION`. */
export function checkNumber(
  value: unknown,
  argument: string,
  expected = 'a finite number',
): number {
  if (typeof value === 'number') return value;
  throw new MultiheadError('E_OPTION', { argument, expected, got: describe(value) });
}
