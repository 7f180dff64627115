// JSON of a folder's files, and config.json as the flat list that the core reads.

import { MultiheadError } from '../runtime/errors.js';
import { formatError, inWords, isObject } from '../safetensors/format.js';
import type { FlatList } from './core/engine.js';

/** Parses the text of a file. Throws `E_FORMAT` that names the file, also for JSON that is no object. */
export function parseObject(file: string, text: string): Record<string, unknown> {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw new MultiheadError('E_FORMAT', { argument: file, expected: 'JSON', got: (cause as Error).message, cause });
  }
  if (isObject(json)) return json;
  throw formatError(file, 'a JSON object', inWords(json));
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

/** More values than any configuration has; files may come from untrusted sources. */
const mostValues = 2 ** 17;

/**
 * Flattens config.json: a value has the path of its names, such as `rope_parameters.rope_theta`. Its kind is the first
 * letter of the second text: n null, b boolean, d number, t text.
 */
export function flattened(config: Record<string, unknown>): WireList {
  const list = new WireList();
  const file = 'config.json';
  const open: [path: string, value: unknown][] = Object.entries(config);
  for (let count = 0; open.length > 0; count += 1) {
    if (count > mostValues) throw formatError(file, `at most ${mostValues} values`, 'more');
    const [path, value] = open.pop() as [string, unknown];
    if (typeof value === 'object' && value !== null) {
      for (const [name, inner] of Object.entries(value)) open.push([`${path}.${name}`, inner]);
      continue;
    }
    list.text(path, file);
    if (typeof value === 'string') list.text(`t${value}`, file);
    else list.text(value === null ? 'n' : typeof value === 'boolean' ? 'b' : 'd', file);
    if (typeof value === 'number' || typeof value === 'boolean') list.number(Number(value));
  }
  return list;
}
