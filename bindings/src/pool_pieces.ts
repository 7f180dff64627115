// The pieces of a divided call: sent to the workers, the longest first.

import { MultiheadError } from './errors.js';
import { arrayOf, bytesPerElement, onJavaScriptHeap } from './memory.js';
import { packArguments, type CallOptions } from './pool_arguments.js';
import type { PoolCore } from './pool_core.js';
import type { Lending } from './pool_lending.js';
import type { Numbers } from './read_tensor.js';
import type { Task, Verb } from './pool_protocol.js';
import { elements } from './shape.js';
import type { DType, Shape } from './types.js';

/** Its operands have been copied. */
export interface Piece {
  /** Compared with that of the other pieces. */
  readonly work: number;
  run(signal: AbortSignal | undefined): Promise<void>;
}

/** Sends a task whose arguments are copied now, and gives its result to `receive`. */
export function pieceOf(
  core: PoolCore,
  { name, work, args }: { name: Verb; work: number; args: readonly unknown[] },
  taskOf: (args: ReturnType<typeof packArguments>['args']) => Task,
  receive: (value: unknown) => void,
): Piece {
  const packed = packArguments(args);
  const task = taskOf(packed.args);
  return {
    work,
    run: async (signal) => receive((await core.send(name, { task, transfer: packed.transfer }, signal)).value),
  };
}

/** Runs a call whole in one worker, with the buffers that it was lent. */
export async function runWhole(
  core: PoolCore,
  { verb, args, lent }: { verb: Verb; args: readonly unknown[]; lent: Lending | undefined },
  { signal, progress }: CallOptions,
): Promise<unknown> {
  const packed = packArguments(args, { lent: lent?.buffers });
  const task = { kind: 'run', verb, args: packed.args, lent: lent?.buffers ?? [] } as const;
  const { value } = await core.send(verb, { task, transfer: packed.transfer, lent }, signal);
  progress?.(1, 1);
  return value;
}

/**
 * Runs all pieces. A worker's error about a piece would name the shapes of the piece, so `whole` is run for the error of
 * the call.
 */
export async function runPieces(
  pieces: readonly Piece[],
  { signal, progress }: CallOptions,
  whole: () => Promise<unknown>,
): Promise<void> {
  let done = 0;
  const longestFirst = [...pieces].sort((a, b) => b.work - a.work);
  try {
    await Promise.all(
      longestFirst.map(async (piece) => {
        await piece.run(signal);
        progress?.((done += 1), pieces.length);
      }),
    );
  } catch (error) {
    const code = error instanceof MultiheadError ? error.code : undefined;
    if (code === 'E_SHAPE' || code === 'E_OPTION') await whole();
    throw error;
  }
}

/** Zeros on the JavaScript heap. Throws `E_MEMORY`. */
export function zeros<D extends DType>(dtype: D, shape: Shape, name: string): Numbers<D> {
  const bytes = elements(shape) * bytesPerElement(dtype);
  const buffer = onJavaScriptHeap(bytes, name, () => new ArrayBuffer(bytes));
  return { data: new arrayOf[dtype](buffer) as Numbers<D>['data'], shape: [...shape], dtype };
}

/** The ends of at most `count` runs of items with about equal work. */
export function cutEvenly(work: readonly number[], count: number): number[] {
  const total = work.reduce((sum, each) => sum + each, 0);
  const ends: number[] = [];
  let done = 0;
  work.forEach((each, index) => {
    done += each;
    const last = index + 1 === work.length;
    if (last || done >= ((ends.length + 1) * total) / count - total * 1e-9) ends.push(index + 1);
  });
  return ends;
}
