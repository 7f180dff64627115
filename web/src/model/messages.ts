// The functions of the worker of the visitor's own model.

import type { TextAttention, ModelInfo, Next } from './session.js';

/** The page sends `File` objects, and the worker reads them: the page holds no copy. */
export interface GivenFiles {
  readonly model: File;
  readonly vocabulary?: File | undefined;
  readonly merges?: File | undefined;
  readonly heads?: number | undefined;
}

export interface ModelCalls {
  open(files: GivenFiles): ModelInfo;
  attend(text: string): TextAttention;
  start(text: string): Next;
  next(): Next;
}
