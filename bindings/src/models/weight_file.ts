// A file of weights: its tensors, and errors about it.

import { MultiheadError } from '../runtime/errors.js';
import type { OpenFile } from './folder.js';

/** A tensor of a file; its bytes are `begin` to `end` − 1 behind the header. */
export interface StoredEntry {
  readonly name: string;
  /** As the file names it. */
  readonly type: string;
  readonly shape: readonly number[];
  readonly begin: number;
  readonly end: number;
}

export interface WeightFile {
  readonly name: string;
  /** Stands before the names of its tensors. */
  readonly prefix: string;
  /** Undefined while it is closed. */
  file: OpenFile | undefined;
  readonly first: number;
  readonly entries: readonly StoredEntry[];
}

/** An error about a file, with its name, because a model may have several. */
export function inFile(name: string, error: unknown): unknown {
  if (!(error instanceof MultiheadError) || error.code !== 'E_FORMAT') return error;
  const { argument, expected, got } = error;
  return new MultiheadError('E_FORMAT', { argument: `${name}: ${argument}`, expected, got, cause: error });
}
