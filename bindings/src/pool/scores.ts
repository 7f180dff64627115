// pool.scores(): workers compute chunks of rows ahead of the loop that reads them.

import { runtimeOf } from '../api/multihead.js';
import type { Runtime } from '../runtime/operands.js';
import type { FloatTensorLike, ScoreRows, ScoresOptions } from '../types/index.js';
import type { CallOptions, Handle } from './arguments.js';
import { packArguments, splitOptions } from './arguments.js';
import type { PoolCore } from './core.js';
import { restored } from './worker/tasks.js';

interface ReadCall {
  readonly inputs: readonly [q: FloatTensorLike, k: FloatTensorLike, options: ScoresOptions];
  readonly own: CallOptions;
}

export function poolScores(
  core: PoolCore,
  ...given: readonly [q: FloatTensorLike, k: FloatTensorLike, options: object]
): AsyncGenerator<ScoreRows, void, undefined> {
  const call = readCall(core, given);
  // The first next() awaits this promise. This handler prevents an unhandled rejection if next() is never called.
  call.catch(() => {});
  return stream(core, call);
}

/** Copies the arguments once for all workers. Async, so that the first next() throws the errors. */
async function readCall(core: PoolCore, given: readonly [unknown, unknown, unknown]): Promise<ReadCall> {
  const { args, options: own } = splitOptions(given.slice(2));
  const all = [given[0], given[1], args[0]];
  const { heap } = runtimeOf.get(core.mh) as Runtime;
  const copies = packArguments(all).args.map((each, index) => ('object' in each ? all[index] : restored(heap, each)));
  return { inputs: copies as unknown as ReadCall['inputs'], own };
}

async function* stream(core: PoolCore, call: Promise<ReadCall>): AsyncGenerator<ScoreRows, void, undefined> {
  const { inputs, own } = await call;
  const { signal } = own;
  const held: Handle[] = [];
  const hold = async (): Promise<Handle> => {
    const { handle } = await core.make('scores', [...inputs, { signal }]);
    held.push(handle);
    return handle;
  };
  try {
    // The first worker checks the arguments; the others begin after that check.
    const first = await hold();
    const head = (await core.invoke(first, 'rows', [{ signal }], 'scores')) as ScoreRows | undefined;
    if (head === undefined) return;
    const [q, , { rows: range, chunk = 64 }] = inputs;
    const [begin, count] = range ?? [0, q.shape[2] as number];
    const chunks = Math.ceil(count / chunk);
    const others = Math.min(core.workers.count - 1, chunks - 2);
    // Wait for all workers, so that the finally block releases the successful ones if another fails.
    const holding = await Promise.allSettled(Array.from({ length: Math.max(0, others) }, hold));
    const failed = holding.find(({ status }) => status === 'rejected');
    if (failed !== undefined) throw (failed as PromiseRejectedResult).reason;
    const workers = [...held];

    const rowsOf = async (index: number): Promise<ScoreRows> => {
      const place = index % workers.length;
      const start = begin + index * chunk;
      const args = [start, Math.min(chunk, begin + count - start), { signal }];
      const compute = () => core.invoke(workers[place] as Handle, 'rows', args, 'scores') as Promise<ScoreRows>;
      try {
        return await compute();
      } catch (error) {
        if (workers[place]?.workers[0]?.state !== 'gone') throw error;
        // Retry only once, because the chunk itself may have ended the worker.
        workers[place] = await hold();
        return compute();
      }
    };
    const ahead: Promise<ScoreRows>[] = [];
    const computeAhead = (index: number): void => {
      if (index >= chunks) return;
      const promise = rowsOf(index);
      // The consumer awaits this promise later, or never if the loop ends early.
      promise.catch(() => {});
      ahead.push(promise);
    };
    for (let index = 1; index <= workers.length; index += 1) computeAhead(index);
    own.progress?.(1, chunks);
    yield head;
    for (let index = 1; index < chunks; index += 1) {
      const rows = await (ahead.shift() as Promise<ScoreRows>);
      computeAhead(index + workers.length);
      own.progress?.(index + 1, chunks);
      yield rows;
    }
  } finally {
    for (const handle of held) core.release(handle);
  }
}
