// The pieces of a divided call. Workers get the longest piece first.

import { MultiheadError, optionError } from '../runtime/errors.js';
import { arrayOf, bytesPerElement, onJavaScriptHeap } from '../runtime/memory.js';
import type { Numbers } from '../runtime/read_tensor.js';
import { elements } from '../runtime/shape.js';
import type { DType, Shape } from '../types/index.js';
import { type CallOptions, packArguments, type SentArguments } from './arguments.js';
import type { PoolCore } from './core.js';
import type { Task, Verb } from './shared/protocol.js';
import type { TransferredOperands } from './transfer.js';

/** A part of a call whose operands have been copied. */
export interface Piece {
  /** Relative cost; pieces with more work are sent first. */
  readonly work: number;
  run(signal: AbortSignal | undefined): Promise<void>;
}

/** Makes a piece, by default of a whole call. Copies the arguments now; run() sends the task and passes the result to `receive`. */
export function pieceOf(
  core: PoolCore,
  { name, work, args }: { name: Verb; work: number; args: readonly unknown[] },
  receive: (value: unknown) => void,
  taskOf = (sent: SentArguments['args']): Task => ({ kind: 'run', verb: name, args: sent }),
): Piece {
  const packed = packArguments(args);
  const task = taskOf(packed.args);
  return {
    work,
    run: async (signal) => receive((await core.send(name, { task, transfer: packed.transfer }, signal)).value),
  };
}

/** The pieces of one sequence: `done` runs after the last of them. */
export function piecesOfOne(runs: readonly Piece['run'][], work: number, done: () => void): Piece[] {
  let left = runs.length;
  return runs.map((run) => ({
    work,
    run: async (signal) => {
      await run(signal);
      left -= 1;
      if (left === 0) done();
    },
  }));
}

/** Runs an undivided call in one worker, with the transferred buffers if there are any. */
export async function runWhole(
  core: PoolCore,
  { verb, args, transferred }: { verb: Verb; args: readonly unknown[]; transferred: TransferredOperands | undefined },
  { signal, progress }: CallOptions,
): Promise<unknown> {
  const packed = packArguments(args, { transferred: transferred?.buffers });
  const task = { kind: 'run', verb, args: packed.args, transferred: transferred?.buffers ?? [] } as const;
  const { value } = await core.send(verb, { task, transfer: packed.transfer, transferred }, signal);
  progress?.(1, 1);
  return value;
}

/** Sends all tasks, and tells how many are done. */
export async function runAll(runs: readonly Piece['run'][], { signal, progress }: CallOptions): Promise<void> {
  let done = 0;
  await Promise.all(
    runs.map(async (run) => {
      await run(signal);
      progress?.((done += 1), runs.length);
    }),
  );
}

/**
 * Runs all pieces, which write into `results`; a single one as the undivided call `whole`. If a worker reports E_SHAPE or E_OPTION,
 * runs `whole`, too, whose error names the shapes of the call and not of a piece.
 */
export async function runPieces<R>(pieces: readonly Piece[], results: R, own: CallOptions, whole: () => Promise<R>): Promise<R> {
  if (pieces.length <= 1) return whole();
  const longestFirst = [...pieces].sort((a, b) => b.work - a.work).map(({ run }) => run);
  try {
    await runAll(longestFirst, own);
    return results;
  } catch (error) {
    const code = error instanceof MultiheadError ? error.code : undefined;
    if (code === 'E_SHAPE' || code === 'E_OPTION') await whole();
    throw error;
  }
}

/** Throws `E_OPTION` if the caller gives `out`. */
export function checkNoOut({ out }: { readonly out?: unknown }): void {
  if (out === undefined) return;
  throw optionError('out', 'no out: the results come in arrays of their own', 'one');
}

/** Allocates zeros on the JavaScript heap. Throws `E_MEMORY`. */
export function zeros<D extends DType>(dtype: D, shape: Shape, name: string): Numbers<D> {
  const bytes = elements(shape) * bytesPerElement(dtype);
  const buffer = onJavaScriptHeap(bytes, name, () => new ArrayBuffer(bytes));
  return { data: new arrayOf[dtype](buffer) as Numbers<D>['data'], shape: [...shape], dtype };
}
