// Helpers for golden cases, of operations and of models. The files are the repository's own, so only what they say is
// checked, not their form.

import { readFile } from 'node:fs/promises';

export class NotSupported extends Error {
  constructor(what) {
    super(`not supported yet: ${what}`);
  }
}

/** The largest error of each kind of output so far. */
export const largest = {};
export function note(name, error) {
  const kind = name.replace(/[.\d]+$/, '');
  largest[kind] = Math.max(largest[kind] ?? 0, error);
}
export const largestErrors = () =>
  `largest errors: ${Object.entries(largest)
    .map(([kind, error]) => `${kind} ${error.toExponential(1)}`)
    .join(', ')}`;

export const product = (extents) => extents.reduce((a, b) => a * b, 1);

export const readJson = async (path) => JSON.parse(await readFile(path, 'utf8'));

/** Every tensor of a safetensors file, by name: { dtype, shape, data }. */
export const readTensors = async ({ readSafetensors }, path) => readSafetensors(await readFile(path)).tensors;

/** Selects the tensors of a case by `table` ({ argument: tensor name }). */
export function pick(table, tensors) {
  return Object.fromEntries(
    Object.entries(table).map(([argument, name]) => {
      if (tensors[name] === undefined) throw new Error(`${argument}: tensor ${name} is not in the file`);
      return [argument, tensors[name]];
    }),
  );
}

export const messageOf = (error) => (error instanceof Error ? error.message : String(error));
