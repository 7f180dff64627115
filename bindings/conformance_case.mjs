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

/**
 * Throws unless each number is near its golden number, whose index `indexOf` gives; those that are `hidden` do not count.
 *
 * @param {number} size of the whole golden tensor
 */
export function compareNumbers(name, got, golden, { tolerance = 1e-5, size = got.length, indexOf = (at) => at, hidden = () => false } = {}) {
  if (golden === undefined) throw new NotSupported(`output ${name}`);
  const { data } = golden;
  if (data.length !== size) throw new Error(`${name}: expected ${data.length} numbers, got ${size}`);
  for (let at = 0; at < got.length; at += 1) {
    const wanted = data[indexOf(at)];
    const error = hidden(at) ? 0 : Math.abs(got[at] - wanted);
    note(name, error);
    if (!(error <= tolerance)) throw new Error(`${name}[${indexOf(at)}]: expected ${wanted}, got ${got[at]} (tolerance ${tolerance})`);
  }
}

export const messageOf = (error) => (error instanceof Error ? error.message : String(error));
