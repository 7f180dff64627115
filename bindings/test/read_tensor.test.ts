// The operands of a pool's calls are read when the call begins: a later change by the caller has no effect, or is an error.

import { load, type Multihead } from 'multihead';
import { createPool, type Pool } from 'multihead/pool';
import { afterEach, beforeAll, expect, test } from 'vitest';
import { rejectionOf } from './builds.ts';
import { sameResults } from './pool_results.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

let mh: Multihead;
beforeAll(async () => {
  mh = await load();
});

const pools: Pool[] = [];
async function open(): Promise<Pool> {
  const pool = await createPool({ workers: 2, leastWork: 1 });
  pools.push(pool);
  return pool;
}
afterEach(() => {
  for (const pool of pools.splice(0)) pool.dispose();
});

const r = random(11);
const operands = () => ({ q: filled(r, 1, 2, 20, 8), k: filled(r, 1, 2, 30, 8), v: filled(r, 1, 2, 30, 8) });

const detach = (array: Float32Array): void => void structuredClone(array.buffer, { transfer: [array.buffer] });

test('operands are copied before the call returns its promise', async () => {
  const pool = await open();
  const { q, k, v } = operands();
  const { out } = mh.attention(q, k, v);
  const call = pool.attention(q, k, v);
  for (const each of [q, k, v]) each.data.fill(NaN);
  sameResults(await call, { out }, 'attention');
  out.dispose();
});

test('a buffer of out that is detached during the call is an error', async () => {
  const pool = await open();
  const { q, k, v } = operands();
  const out = { shape: [1, 2, 20, 8], data: new Float32Array(320) };
  const call = rejectionOf(pool.attention(q, k, v, { out }));
  detach(out.data);
  const error = await call;
  expect([error.code, error.argument]).toEqual(['E_SHAPE', 'out']);
});
