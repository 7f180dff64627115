// Arguments of the command: what each option takes, and the help that lists it.

import { parseArgs } from 'node:util';
import { printable, quoted } from '../runtime/text.js';

/** Wrong arguments: exit code 2. */
export class UsageError extends Error {
  constructor(argument: string, expected: string, got: string) {
    super(`${argument}: expected ${expected}, got ${got}`);
  }
}

/** One option of a command. */
export interface Option<T> {
  /** Name of its value in the help; empty for an option without one. */
  readonly placeholder: string;
  readonly help: string;
  /** Describes a right value, for errors. */
  readonly expected: string;
  /** The value if the option is missing. */
  readonly fallback: T;
  /** Reads one value, after those before it; undefined if it is wrong. */
  read(text: string, before: T): T | undefined;
}

export type Options = Readonly<Record<string, Option<unknown>>>;
export type Values<O extends Options> = { readonly [K in keyof O]: O[K] extends Option<infer T> ? T : never };

export const flag = (help: string): Option<boolean> => ({ placeholder: '', help, expected: 'no value', fallback: false, read: () => true });

/** A number that is right if `isRight`; undefined if it is missing. */
export function number(help: string, expected: string, isRight: (value: number) => boolean): Option<number | undefined> {
  const read = (text: string): number | undefined => {
    const value = text.trim() === '' ? NaN : Number(text);
    return Number.isFinite(value) && isRight(value) ? value : undefined;
  };
  return { placeholder: 'X', help, expected, fallback: undefined, read };
}

export const count = (help: string): Option<number | undefined> => ({
  ...number(help, 'a whole number, 0 or more', (value) => Number.isSafeInteger(value) && value >= 0),
  placeholder: 'N',
});

export function choice<const N extends string>(help: string, names: readonly N[], fallback: N): Option<N> {
  const expected = `one of ${names.join(', ')}`;
  return {
    ...{ placeholder: 'NAME', help: `${help}: ${names.join(', ')}; default ${fallback}`, expected, fallback },
    read: (value) => names.find((name) => name === value),
  };
}

/** A text that is right if `isRight`; undefined if it is missing. */
export function text(placeholder: string, help: string, expected: string, isRight: (value: string) => boolean): Option<string | undefined> {
  return { placeholder, help, expected, fallback: undefined, read: (value) => (isRight(value) ? value : undefined) };
}

export const chart = (help: string): Option<string | undefined> =>
  text('FILE', help, 'the name of a file that ends with .svg', (name) => /\.svg$/i.test(name));

/** Texts, one each time that the option is given. */
export const texts = (help: string): Option<readonly string[]> => ({
  ...{ placeholder: 'TEXT', help, expected: 'a text', fallback: [] },
  read: (value, before) => (value === '' ? undefined : [...before, value]),
});

function wholeNumbers(list: string): number[] | undefined {
  const numbers = list.split(',').map((part) => (/^\s*\d+\s*$/.test(part) ? Number(part) : NaN));
  return numbers.every((each) => each < 2 ** 31) ? numbers : undefined;
}

/** Whole numbers with commas between them; undefined if they are missing. */
export const numbers = (help: string): Option<readonly number[] | undefined> => ({
  ...{ placeholder: 'LIST', help, expected: 'whole numbers with commas between them', fallback: undefined },
  read: wholeNumbers,
});

/** Lists of whole numbers, one each time that the option is given. */
export const lists = (help: string): Option<readonly (readonly number[])[]> => ({
  ...{ placeholder: 'LIST', help, expected: 'token ids with commas between them', fallback: [] },
  read(list, before) {
    const read = wholeNumbers(list);
    return read && [...before, read];
  },
});

/** The name of an option on the command line: --top-k of topK. */
export const flagOf = (name: string): string => `--${name.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;

/** Reads arguments. Throws UsageError. */
export function parse<const O extends Options>(args: readonly string[], options: O) {
  const byFlag = new Map(Object.entries(options).map(([name, option]) => [flagOf(name).slice(2), { name, option }]));
  const types = [...byFlag].map(([name, { option }]) => [name, { type: option.placeholder === '' ? 'boolean' : 'string' }] as const);
  // The errors of `strict` span several lines. Without it, tokens tell wrong options.
  const { tokens } = parseArgs({ args: [...args], options: Object.fromEntries(types), strict: false, allowPositionals: true, tokens: true });
  const values: Record<string, unknown> = Object.fromEntries(Object.entries(options).map(([name, { fallback }]) => [name, fallback]));
  const positionals: string[] = [];
  for (const token of tokens) {
    if (token.kind === 'positional') positionals.push(token.value);
    if (token.kind !== 'option') continue;
    const found = byFlag.get(token.name);
    if (found === undefined) {
      throw new UsageError(printable(token.rawName), 'an option that --help lists; a text that begins with - comes after --', 'another one');
    }
    const { name, option } = found;
    const isFlag = option.placeholder === '';
    if (isFlag !== (token.value === undefined)) {
      throw new UsageError(flagOf(name), option.expected, isFlag ? quoted(String(token.value)) : 'none');
    }
    const value = option.read(token.value ?? '', values[name]);
    if (value === undefined) throw new UsageError(flagOf(name), option.expected, quoted(String(token.value)));
    values[name] = value;
  }
  return { values: values as Values<O>, positionals };
}

/** The lines of the help, one option in each. */
export function helpOf(options: Options): string {
  const rows = Object.entries(options).map(([name, { placeholder, help }]) => [`${flagOf(name)} ${placeholder}`, help] as const);
  const width = Math.max(...rows.map(([usage]) => usage.length));
  return rows.map(([usage, help]) => `  ${usage.padEnd(width)}  ${help}\n`).join('');
}
