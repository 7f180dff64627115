// pool.scores(): workers compute chunks of rows ahead of the loop that reads them.

import { runtimeOf } from './multihead.js';
import type { Runtime } from './operands.js';
import type { Handle } from './pool_arguments.js';
import { packArguments, splitOptions } from './pool_arguments.js';
import type { PoolCore } from './pool_core.js';
import type { SentValue } from './pool_protocol.js';
import { restored } from './pool_stand_ins.js';
import type { FloatTensorLike, ScoreRows, ScoresOptions } from './types.js';

export async function* poolScores(
  core: PoolCore,
  q: FloatTensorLike,
  k: FloatTensorLike,
  given: object,
): AsyncGenerator<ScoreRows, void, undefined> {
  const { args, options: own } = splitOptions([given]);
  const { signal } = own;
  // Read once, for all workers.
  const copies = packArguments([q, k, args[0]]).args as SentValue[];
  const { heap } = runtimeOf.get(core.mh) as Runtime;
  const [ownQ, ownK, options] = copies.map((each) => restored(heap, each)) as [FloatTensorLike, FloatTensorLike, ScoresOptions];
  const held: Handle[] = [];
  const hold = async (): Promise<Handle> => {
    const { handle } = await core.make('scores', [ownQ, ownK, options, { signal }]);
    held.push(handle);
    return handle;
  };
  try {
    // The first worker checks the call; the others begin when it has found no fault.
    const first = await hold();
    const head = (await core.invoke(first, 'rows', [{ signal }], 'scores')) as ScoreRows | undefined;
    if (head === undefined) return;
    const queries = ownQ.shape[2] as number;
    const [begin, count] = options.rows ?? [0, queries];
    const chunk = options.chunk ?? 64;
    const starts: number[] = [];
    for (let row = begin + chunk; row < begin + count; row += chunk) starts.push(row);
    const others = Math.min(core.crew.workers - 1, starts.length - 1);
    // All of them, so that those that succeed are released below if one fails.
    const holding = await Promise.allSettled(Array.from({ length: Math.max(0, others) }, hold));
    const failed = holding.find(({ status }) => status === 'rejected');
    if (failed !== undefined) throw (failed as PromiseRejectedResult).reason;
    const workers = [...held];

    const ahead: Promise<ScoreRows>[] = [];
    const rowsOf = (index: number): void => {
      const start = starts[index];
      if (start === undefined) return;
      const worker = workers[index % workers.length] as Handle;
      const rows = Math.min(chunk, begin + count - start);
      const promise = core.invoke(worker, 'rows', [start, rows, { signal }], 'scores') as Promise<ScoreRows>;
      // It is awaited later, or never if the loop ends early.
      promise.catch(() => {});
      ahead.push(promise);
    };
    for (let index = 0; index < workers.length; index += 1) rowsOf(index);
    own.progress?.(1, starts.length + 1);
    yield head;
    for (let index = 0; index < starts.length; index += 1) {
      const rows = await (ahead.shift() as Promise<ScoreRows>);
      rowsOf(index + workers.length);
      own.progress?.(index + 2, starts.length + 1);
      yield rows;
    }
  } finally {
    for (const handle of held) core.release(handle);
  }
}
