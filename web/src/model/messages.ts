// The functions of the worker of the visitor's own model.

import type { Look, ModelInfo, Next } from './session.js';

/** The page sends `File` objects, and the worker reads them: the page holds no copy. */
export interface GivenFiles {
  readonly model: File;
  readonly vocabulary?: File | undefined;
  readonly merges?: File | undefined;
  readonly heads?: number | undefined;
}

export interface ModelCalls {
  open(files: GivenFiles): ModelInfo;
  look(text: string): Look;
  start(text: string): Next;
  next(): Next;
}
