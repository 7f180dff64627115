// The messages between the page and the worker of the visitor's own model.

import type { Look, ModelInfo, Next } from './session.js';

/** The page sends `File` objects, and the worker reads them: the page holds no copy. */
export interface GivenFiles {
  readonly model: File;
  readonly vocabulary?: File | undefined;
  readonly merges?: File | undefined;
  readonly heads?: number | undefined;
}

export interface Calls {
  open(files: GivenFiles): ModelInfo;
  look(text: string): Look;
  start(text: string): Next;
  next(): Next;
}
export type CallName = keyof Calls;

export interface Request {
  readonly id: number;
  readonly name: CallName;
  readonly values: readonly unknown[];
}

export type Reply =
  | { readonly id: number; readonly value: unknown }
  | { readonly id: number; readonly failure: string }
  /** Name of the lock that the worker holds until it ends. */
  | { readonly lock: string };
