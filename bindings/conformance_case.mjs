// Helpers for golden cases, of operations and of models: they read files that may hold anything, and describe a wrong
// value.

import { readFile, stat } from 'node:fs/promises';

export class NotSupported extends Error {
  constructor(what) {
    super(`not supported yet: ${what}`);
  }
}

export const product = (extents) => extents.reduce((a, b) => a * b, 1);

/** Limit on the elements of one tensor. Golden cases are smaller. */
const mostElements = 2 ** 26;
const mostBytes = 2 ** 30;
export const mostRank = 8;

export const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** Reads own properties only, because a manifest may contain "constructor". */
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

/** Describes a value of a manifest in a few words. */
function described(value) {
  if (value === undefined) return 'nothing';
  if (Array.isArray(value)) return 'an array';
  return isObject(value) ? 'an object' : JSON.stringify(value).slice(0, 60);
}

export function check(right, what, type, value) {
  if (!right) throw new Error(`${what}: expected ${type}, got ${described(value)}`);
}

export async function readRegularFile(path) {
  // Accept only regular files, because reading a named pipe would never end.
  const status = await stat(path);
  if (!status.isFile()) throw new Error(`${path} is not a file`);
  if (status.size > mostBytes) throw new Error(`${path} is larger than ${mostBytes} bytes`);
  return readFile(path);
}

/** Parses JSON; throws if the bytes are not UTF-8. */
export const parseJson = (bytes) => JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));

/** Every tensor of a safetensors file, by name: { dtype, shape, data }. */
export async function readTensors({ readSafetensors }, path) {
  const tensors = new Map(Object.entries(readSafetensors(await readRegularFile(path)).tensors));
  for (const [name, { shape }] of tensors) {
    if (product(shape.map((extent) => Math.max(extent, 1))) > mostElements) {
      throw new Error(`${name} has more than ${mostElements} elements`);
    }
  }
  return tensors;
}

/** Selects the tensors of a case by `table` ({ argument: tensor name }). */
export function pick(table, tensors) {
  return Object.fromEntries(
    Object.entries(table).map(([argument, name]) => {
      check(typeof name === 'string', argument, 'the name of a tensor', name);
      const tensor = tensors.get(name);
      if (tensor === undefined) throw new Error(`tensor ${name} is not in the file`);
      return [argument, tensor];
    }),
  );
}

export const isInteger = Number.isSafeInteger;
/** True for a number in the range of 32-bit floats. */
export const isNumber = (value) => typeof value === 'number' && Math.abs(value) <= 3.4028234663852886e38;
export const isText = (value) => typeof value === 'string';

export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** Returns at most 400 characters of a text from a file, which may hold any, with escapes such as "\\u202e". */
export function printable(text) {
  const escaped = (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`;
  const short = text.length > 400 ? `${text.slice(0, 400).replace(/[\ud800-\udbff]$/, '')}…` : text;
  return short.replace(/[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\p{Bidi_Control}]/gu, escaped);
}
