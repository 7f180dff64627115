// pool.scores(): when it reads its operands, how far it computes ahead, and workers that end while it runs.
// pool_attention.test.ts and pool_verbs.test.ts compare its results with one thread.

import { load, type Multihead, type ScoreRows } from 'multihead';
import { createPool, type Pool } from 'multihead/pool';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { rejectionOf } from './builds.ts';
import { sameResults } from './pool_results.ts';
import { running, until } from './pool_threads.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

let mh: Multihead;
let pool: Pool;
beforeAll(async () => {
  [mh, pool] = await Promise.all([load(), createPool({ workers: 2 })]);
});
afterAll(() => pool.dispose());

const r = random(1);
const [q, k] = [filled(r, 1, 2, 90, 8), filled(r, 1, 1, 50, 8)];
const none = (queries: number) => ({ shape: [0, 1, queries, 1], data: new Float32Array(0) });

async function all(rows: AsyncIterable<ScoreRows>): Promise<ScoreRows[]> {
  const chunks = [];
  for await (const chunk of rows) chunks.push(chunk);
  return chunks;
}

test('operands and options are read at the call, as by every other call', async () => {
  const given = { shape: [...q.shape], data: q.data.slice() };
  const heads = [1];
  const options = { stage: 'masked', causal: 'topLeft', chunk: 20, heads } as const;
  const expected = [...mh.scores(q, k, { ...options, heads: [1] })];
  const tensor = mh.tensor(k.data, k.shape);
  const rows = pool.scores(given, tensor, options);
  given.data.fill(NaN);
  heads[0] = 0;
  tensor.dispose();
  sameResults(await all(rows), expected, 'scores');
});

test('what is wrong with the arguments is thrown by next(), and not before', async () => {
  const cache = await pool.createCache({ numKvHeads: 1, headDim: 8, capacity: 4 });
  const wrong: [unknown, unknown, string][] = [
    [[1, 2], { stage: 'raw' }, 'q'],
    [cache, { stage: 'raw' }, 'q'],
    [q, { stage: 'row' }, 'stage'],
    [q, { stage: 'raw', signal: {} }, 'signal'],
    [q, undefined, 'stage'],
  ];
  for (const [first, options, argument] of wrong) {
    const error = await rejectionOf(pool.scores(first as never, k, options as never).next());
    expect([error.code, error.argument], error.message).toEqual(['E_OPTION', argument]);
  }
  // A generator that is never read reports nothing.
  void pool.scores([1, 2] as never, k, { stage: 'raw' });
  await pool.memory();
  cache.dispose();
});

test('nothing is prepared for each chunk before it is asked for', async () => {
  let pushed = 0;
  const { push } = Array.prototype;
  Array.prototype.push = function (...each: unknown[]) {
    pushed += 1;
    return push.apply(this, each);
  };
  const first = await pool.scores(none(1_000_000), none(1), { stage: 'raw', chunk: 1 }).next();
  Array.prototype.push = push;
  expect(first.value?.shape).toEqual([0, 1, 1, 1]);
  expect(pushed).toBeLessThan(10_000);
  const rows = pool.scores(none(2 ** 31 - 1), none(1), { stage: 'raw', chunk: 2 ** 30 });
  expect((await all(rows)).map(({ firstRow, rows: count }) => [firstRow, count])).toEqual([
    [0, 2 ** 30],
    [2 ** 30, 2 ** 30 - 1],
  ]);
});

test('a worker that ends is replaced, and the other chunks are computed there', async () => {
  const options = { stage: 'weights', chunk: 10 } as const;
  const expected = [...mh.scores(q, k, options)];
  const rows = pool.scores(q, k, options);
  const chunks = [(await rows.next()).value as ScoreRows];
  await until(() => running.size === 2);
  await Promise.all([...running].map((thread) => thread.terminate()));
  sameResults([...chunks, ...(await all(rows))], expected, 'scores');
});
