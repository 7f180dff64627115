// All failures of the package are errors of one class, with a code.

import { printable } from './printable.js';

/**
 * The kinds of {@link MultiheadError}.
 *
 * - `E_SHAPE` a shape or length does not fit the call
 * - `E_OPTION` an option is unknown, has a value or type outside its definition, or contradicts another
 * - `E_DISPOSED` a tensor, layer, cache or trainer was used after it was disposed
 * - `E_MEMORY` the WebAssembly memory could not grow as far as needed
 * - `E_FORMAT` a file is not what its format says
 * - `E_FATAL` the instance is dead since a call of its WebAssembly code ended with a trap: `load()` gives
 *   a new one
 * - `E_LOAD` the engine lacks WebAssembly SIMD, or the `.wasm` is missing or not the right file
 * - `E_ABORTED` the `AbortSignal` given to `load()`, `train()`, `createPool()` or a call of a pool was aborted
 * - `E_WORKER` a worker of a pool ended during the call, or an object that lived in it is lost
 * - `E_BUSY` too many calls wait in a pool
 */
export type MultiheadErrorCode =
  | 'E_SHAPE'
  | 'E_OPTION'
  | 'E_DISPOSED'
  | 'E_MEMORY'
  | 'E_FORMAT'
  | 'E_FATAL'
  | 'E_LOAD'
  | 'E_ABORTED'
  | 'E_WORKER'
  | 'E_BUSY';

/** The parts of a {@link MultiheadError}. */
export interface MultiheadErrorParts {
  /** What was wrong, by its name in the call. */
  argument: string;
  /** What would have been right. */
  expected: string;
  /** What came instead. */
  got: string;
  /** Replaces the sentence made of the parts. */
  message?: string;
  /** The error that led to this one. */
  cause?: unknown;
}

/** Most characters of an argument's name, and of the other parts, which may list names. */
const mostOfArgument = 100;
const mostOfSentence = 4096;

/**
 * A call that was refused or has failed. It has changed nothing, unless its own documentation says otherwise, and the
 * next call works, with two exceptions. After `E_FATAL` the instance is dead: every call of it throws `E_FATAL`, and its
 * tensors and objects are lost. After `E_WORKER` the objects that lived in the worker are lost; other calls of the pool
 * work.
 */
export class MultiheadError extends Error {
  /** Always `'MultiheadError'`. */
  override readonly name = 'MultiheadError';
  /** What kind of error. */
  readonly code: MultiheadErrorCode;
  /** What was wrong, by its name in the call: `"k"`, `"numHeads"`, `"heads.scales"`. */
  readonly argument: string;
  /** What would have been right. */
  readonly expected: string;
  /** What came instead. */
  readonly got: string;
  /**
   * The operands of a call of a pool with `transfer: true`, in new arrays. Missing if the call has taken none, or if they
   * are in a worker that goes on with a call that was aborted, or has ended.
   */
  declare readonly lent?: Readonly<
    Record<
      string,
      {
        /** Row-major. */
        readonly data: ArrayBufferView;
        /** Extents, outermost first. */
        readonly shape: readonly number[];
        /** Of the elements. */
        readonly dtype: string;
      }
    >
  >;

  /**
   * The message is made of the parts. A long part is shortened and ends with "…", and control characters become escapes
   * such as "\u202e": names may come from a file.
   */
  constructor(code: MultiheadErrorCode, parts: MultiheadErrorParts) {
    const { cause } = parts;
    const argument = printable(parts.argument, mostOfArgument);
    const expected = printable(parts.expected, mostOfSentence);
    const got = printable(parts.got, mostOfSentence);
    super(
      printable(parts.message ?? `${argument}: expected ${expected}, got ${got}`, 3 * mostOfSentence),
      cause === undefined ? undefined : { cause },
    );
    this.code = code;
    this.argument = argument;
    this.expected = expected;
    this.got = got;
  }
}
