// The kinds of field in the page's state: each writes a value to the address and reads it back.

import type { WeightEdit } from '../attention/bend.js';

export interface Field<T> {
  readonly default: T;
  readonly toText: (value: T) => string;
  /** The value, or undefined if the text is not valid. */
  readonly fromText: (text: string) => T | undefined;
}

export const flag = (initial: boolean): Field<boolean> => ({
  default: initial,
  toText: (value) => (value ? '1' : '0'),
  fromText: (text) => (text === '0' || text === '1' ? text === '1' : undefined),
});

export const oneOf = <T extends string>(options: readonly T[], initial: T): Field<T> => ({
  default: initial,
  toText: (value) => value,
  fromText: (text) => options.find((option) => option === text),
});

/** A text of at most `limit` UTF-16 code units. */
export const textUpTo = (limit: number, initial: string): Field<string> => ({
  default: initial,
  toText: (value) => value,
  fromText: (text) => (text.length <= limit ? text : undefined),
});

/** A list of different names out of `options`, at least one: "previous.first". */
export const listOf = <T extends string>(options: readonly T[], initial: readonly T[]): Field<readonly T[]> => ({
  default: initial,
  toText: (value) => value.join('.'),
  fromText: (text) => {
    const names = text.split('.') as T[];
    const known = names.every((name) => options.includes(name));
    return known && new Set(names).size === names.length ? names : undefined;
  },
});

const numeric =
  (form: RegExp) =>
  (least: number, most: number, initial: number): Field<number> => ({
    default: initial,
    toText: String,
    fromText: (text) => {
      const value = form.test(text) ? Number(text) : NaN;
      return value >= least && value <= most ? value : undefined;
    },
  });
/** A whole number from `least` to `most`. */
export const integer = numeric(/^-?\d{1,9}$/);
/** A number from `least` to `most`. */
export const number = numeric(/^-?\d+(\.\d+)?(e-?\d+)?$/);

/** An index below `end`. It counts from 0 in the program, and from 1 in the address and on the page. */
export const index = (end: number, initial = 0): Field<number> => {
  const fromOne = integer(1, end, initial + 1);
  return {
    default: initial,
    toText: (value) => String(value + 1),
    fromText: (text) => {
      const value = fromOne.fromText(text);
      return value === undefined ? undefined : value - 1;
    },
  };
};

/** Like index(), with null for none, which is the default. */
export const indexOrNone = (end: number): Field<number | null> => {
  const some = index(end);
  return { default: null, toText: (value) => (value === null ? '' : some.toText(value)), fromText: some.fromText };
};

/** Different indices below `end`, none by default: "1.3" in the address. */
export const indices = (end: number): Field<readonly number[]> => {
  const one = index(end);
  return {
    default: [],
    toText: (value) => value.map(one.toText).join('.'),
    fromText: (text) => {
      const values = text.split('.').map(one.fromText);
      const known = values.filter((value) => value !== undefined);
      return known.length === values.length && new Set(known).size === known.length ? known.sort((a, b) => a - b) : undefined;
    },
  };
};

/** Weights set by hand, at most `most`: "h1q3k2w0.25_h2q1k1w1" in the address, counted from 1. */
export const weightEdits = (heads: number, tokens: number, most: number): Field<readonly WeightEdit[]> => {
  const [head, token, weight] = [index(heads), index(tokens), number(0, 1, 0)];
  const one = (text: string): WeightEdit | undefined => {
    const [, h = '', q = '', k = '', w = ''] = /^h(\d+)q(\d+)k(\d+)w(\d[\d.]*)$/.exec(text) ?? [];
    const edit = { head: head.fromText(h), query: token.fromText(q), key: token.fromText(k), weight: weight.fromText(w) };
    return Object.values(edit).includes(undefined) ? undefined : (edit as WeightEdit);
  };
  return {
    default: [],
    toText: (value) => value.map(({ head: h, query: q, key: k, weight: w }) => `h${h + 1}q${q + 1}k${k + 1}w${w}`).join('_'),
    fromText: (text) => {
      const edits = text.split('_').map(one);
      const known = edits.filter((edit) => edit !== undefined);
      const places = new Set(known.map((edit) => `${edit.head} ${edit.query} ${edit.key}`));
      return known.length === edits.length && places.size === edits.length && edits.length <= most ? known : undefined;
    },
  };
};

/** One of a few whole numbers, or null for none, which is the default. */
export const numberOrNone = (options: readonly number[]): Field<number | null> => ({
  default: null,
  toText: (value) => (value === null ? '' : String(value)),
  fromText: (text) => options.find((option) => String(option) === text),
});
