// All failures of the package are errors of one class, with a code.

import { printable } from './text.js';

/**
 * The kinds of {@link MultiheadError}.
 *
 * - `E_SHAPE` a shape or length does not fit the call
 * - `E_OPTION` an option is unknown, has a value or type outside its definition, or contradicts another
 * - `E_DISPOSED` a tensor, layer, cache, trainer or the whole instance was used after it was disposed
 * - `E_MEMORY` the WebAssembly memory could not grow as far as needed, or the GPU's memory is exhausted
 * - `E_FORMAT` a file is not what its format says
 * - `E_FATAL` the instance is dead since a call of its WebAssembly code ended with a trap: `load()` gives
 *   a new one
 * - `E_LOAD` the engine lacks WebAssembly SIMD, the `.wasm` is missing or not the right file, or a script or file could not be read
 * - `E_ABORTED` the `AbortSignal` given to `load()`, `train()`, `createPool()`, `openModel()` or a call of a model or a pool was
 *   aborted
 * - `E_WORKER` a worker of a pool or of a model ended during the call, or an object that lived in it is lost
 * - `E_BUSY` too many calls wait in a pool
 * - `E_GPU` there is no WebGPU, no adapter or no device, or the GPU's driver refused a kernel or a call
 * - `E_GPU_LOST` the GPU's device was lost, and all tensors on it
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
  | 'E_BUSY'
  | 'E_GPU'
  | 'E_GPU_LOST';

/** The parts of a {@link MultiheadError}. */
export interface MultiheadErrorParts extends Pick<MultiheadError, 'argument' | 'expected' | 'got'> {
  /** Replaces the message that is composed from the parts. */
  message?: string;
  /** The error that led to this one. */
  cause?: unknown;
}

/** Maximum characters of an argument's name, and of the other parts, which may contain names. */
const mostOfArgument = 100;
const mostOfSentence = 4096;

/**
 * A call that was rejected or has failed. It has changed nothing, unless its own documentation says otherwise, and the
 * next call works, with two exceptions. After `E_FATAL` the instance is dead: every call of it throws `E_FATAL`, and
 * its tensors and objects are lost. After `E_WORKER` the objects of that worker are lost; other calls of the pool work.
 */
export class MultiheadError extends Error {
  /** Node prints it with an uncaught error, also where a bundler has shortened the name of the class. */
  static override readonly name = 'MultiheadError';
  /** Always `'MultiheadError'`. */
  override readonly name = 'MultiheadError';
  /** Kind of error. */
  readonly code: MultiheadErrorCode;
  /** Name of the invalid argument in the call: `"k"`, `"numHeads"`, `"heads.scales"`. */
  readonly argument: string;
  /** Description of a valid value. */
  readonly expected: string;
  /** Description of the actual value. */
  readonly got: string;
  /**
   * Operands of a pool call with `transfer: true`, in new arrays. Missing if the call took none, or if they are in a
   * worker that still runs an aborted call or has ended.
   */
  declare readonly operands?: Readonly<
    Record<
      string,
      {
        /** Row-major. */
        readonly data: ArrayBufferView;
        /** Extents, outermost first. */
        readonly shape: readonly number[];
        /** Dtype of the elements. */
        readonly dtype: string;
      }
    >
  >;

  /**
   * Composes the message from the parts. A long part is shortened and ends with "…", and control characters become
   * escapes such as "\u202e", because names may come from a file.
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

/** The error of an argument with a wrong value or type. */
export const optionError = (argument: string, expected: string, got: string): MultiheadError =>
  new MultiheadError('E_OPTION', { argument, expected, got });

/** The error of something that was used after dispose(). `noun`: "a tensor". */
export const disposedError = (argument: string, noun: string, got = 'a disposed one'): MultiheadError =>
  new MultiheadError('E_DISPOSED', { argument, expected: `${noun} that is not disposed`, got });

/** The error of an argument with a wrong shape or length. */
export const shapeError = (argument: string, expected: string, got: string): MultiheadError =>
  new MultiheadError('E_SHAPE', { argument, expected, got });
