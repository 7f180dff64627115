// The messages between the page and the worker of a model that the visitor brought.

import type { Look, ModelInfo, Next } from './session.js';

/** Files are sent as such, and read in the worker: the page holds no copy. */
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
  /** The lock that the worker holds for life. */
  | { readonly lock: string };
