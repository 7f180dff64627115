// JSON of a folder's files, and settings as the flat list that the core reads.

import { mostJsonLevels, mostJsonPath, mostJsonValues } from '../generated/folder_files.js';
import { MultiheadError } from '../runtime/errors.js';
import { formatError, inWords, isObject } from '../safetensors/format.js';
import type { FlatList } from './core/engine.js';

/** A NaN in JSON; the core takes no text with U+0000. */
const nan = '\0NaN';

/**
 * Parses the text of a file as Python reads it: with a byte order mark, Infinity and NaN. Throws `E_FORMAT` that names
 * the file.
 */
export function parseJson(file: string, text: string): unknown {
  const json = text.replace(/^\ufeff/, '');
  try {
    return JSON.parse(json);
  } catch (cause) {
    try {
      // Texts are matched, too, so that words in them stay.
      const words = /"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/gs;
      return JSON.parse(json.replace(words, (word) => (word === 'NaN' ? '"\\u0000NaN"' : word.replace(/^(-?)Infinity$/, '$11e999'))));
    } catch {
      throw new MultiheadError('E_FORMAT', { argument: file, expected: 'JSON', got: (cause as Error).message, cause });
    }
  }
}

/** As parseJson(); throws for JSON that is no object. */
export function parseObject(file: string, text: string): Record<string, unknown> {
  const json = parseJson(file, text);
  if (isObject(json)) return json;
  throw formatError(file, 'a JSON object', inWords(json));
}

/** Values by their path, such as `rope_parameters.rope_theta`; those of other files begin with the file's path and a slash. */
export type Settings = Map<string, null | boolean | number | string>;

/** Adds the values below `json`; only those of one member if it is given. Throws `E_FORMAT` for more than the limits. */
export function flatten(file: string, json: object, to: Settings, prefix = '', member = ''): void {
  let count = 0;
  const tooMuch = (most: number, what: string): MultiheadError => formatError(file, `at most ${most} ${what}`, 'more');
  const add = (path: string, value: unknown, level: number): void => {
    if (level >= mostJsonLevels) throw tooMuch(mostJsonLevels, 'levels');
    if (path.length > mostJsonPath) throw tooMuch(mostJsonPath, 'characters in a name');
    if (typeof value === 'object' && value !== null) {
      for (const [name, inner] of Object.entries(value)) add(`${path}.${name}`, inner, level + 1);
    } else {
      if ((count += 1) > mostJsonValues) throw tooMuch(mostJsonValues, 'values');
      to.set(path, value === nan ? NaN : (value as null | boolean | number | string));
    }
  };
  for (const [name, value] of Object.entries(json)) if (member === '' || name === member) add(prefix + name, value, 1);
}

/** Texts, each followed by a zero, and numbers: what the core reads as a list. */
export class WireList {
  #texts = '';
  readonly #numbers: number[] = [];

  text(text: string, argument: string): void {
    if (text.includes('\0')) throw formatError(argument, 'names and texts without the character U+0000', 'one with it');
    this.#texts += `${text}\0`;
  }

  number(number: number): void {
    this.#numbers.push(number);
  }

  flat(): FlatList {
    return { texts: this.#texts, numbers: Float64Array.from(this.#numbers) };
  }
}

/** Settings for the core. The kind of a value is the first letter of its text: n null, b boolean, d number, t text. */
export function wireOf(settings: Settings): FlatList {
  const list = new WireList();
  for (const [path, value] of settings) {
    list.text(path, 'config.json');
    if (typeof value === 'string') list.text(`t${value}`, 'config.json');
    else list.text(value === null ? 'n' : typeof value === 'boolean' ? 'b' : 'd', 'config.json');
    if (typeof value === 'number' || typeof value === 'boolean') list.number(Number(value));
  }
  return list.flat();
}
