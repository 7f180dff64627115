// Options with one value each. A schema states the name, the check and the default of each option once.

import type { Count } from '../types/wire.js';
import { optionError } from './errors.js';
import { checkChoice, checkCount, checkFlag, checkNumber, type Entry } from './options.js';
import { describe } from './tensor.js';

/** An option with values of type V. */
export interface Setting<V> extends Entry {
  /** The default; without this property the option is required. */
  readonly otherwise?: V;
  /** Checks a value. Throws `E_OPTION`. */
  read(value: unknown, name: string): V;
}

type Values<S> = { [N in keyof S]: S[N] extends Setting<infer V> ? V : never };

/** Checks options whose names have been checked, in the order of the schema, and fills in defaults. Throws `E_OPTION`. */
export const readSettings = <S extends Readonly<Record<string, Setting<unknown>>>>(
  options: { readonly [N in keyof S]?: unknown },
  schema: S,
): Values<S> =>
  Object.fromEntries(
    Object.entries(schema).map(([name, setting]) => {
      const value = options[name];
      const isDefault = value === undefined && 'otherwise' in setting;
      return [name, isDefault ? setting.otherwise : setting.read(value, name)];
    }),
  ) as Values<S>;

export const flag = (otherwise: boolean): Setting<boolean> => ({ otherwise, read: checkFlag });

/** The core checks the range. */
export const number = (otherwise: number): Setting<number> => ({
  otherwise,
  read: (value, name) => checkNumber(value, name),
});

export const count = <const D extends Count | undefined>(otherwise: D, least = 1): Setting<Count | D> => ({
  otherwise,
  read: (value, name) => checkCount(value, name, least),
});

/** A count that has to be given. */
export const required: Setting<Count> = {
  read: (value, name) => checkCount(value, name),
};

export const choice = <N extends string>(names: readonly N[], otherwise: NoInfer<N>): Setting<N> => ({
  otherwise,
  read: (value, name) => checkChoice(value, names, name),
});

/** A number ≥ 0 and below `limit`: for numbers that the core would report under the name of an option of calls. */
const below = (limit: number, expected: string, otherwise: number): Setting<number> => ({
  otherwise,
  read(value, argument) {
    const checked = checkNumber(value, argument, expected);
    if (checked >= 0 && checked < limit) return checked;
    throw optionError(argument, expected, describe(checked));
  },
});

export const finite = (otherwise: number): Setting<number> => below(Infinity, 'a finite number ≥ 0', otherwise);
export const probability = (otherwise: number): Setting<number> => below(1, '0 ≤ p < 1', otherwise);
