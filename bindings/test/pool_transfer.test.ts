// Calls with { transfer: true }: which buffers are transferred, and how they come back.

import { load, type Multihead } from 'multihead';
import { createPool, type Pool, type PoolOptions } from 'multihead/pool';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
import { rejectionOf } from './builds.ts';
import { sameResults } from './pool_results.ts';
import { running, until } from './pool_threads.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

let mh: Multihead;
beforeAll(async () => {
  mh = await load();
});
const pools: Pool[] = [];
async function open(options: PoolOptions): Promise<Pool> {
  const pool = await createPool(options);
  pools.push(pool);
  return pool;
}
afterEach(async () => {
  for (const pool of pools.splice(0)) pool.dispose();
  await until(() => running.size === 0);
});

const r = random(3);
type Plain = { shape: number[]; data: Float32Array };
const copyOf = ({ shape, data }: { shape: readonly number[]; data: Float32Array }): Plain => ({ shape: [...shape], data: data.slice() });
const someOperands = (queries = 40) => ({
  q: filled(r, 1, 4, queries, 16),
  k: filled(r, 1, 2, queries, 16),
  v: filled(r, 1, 2, queries, 16),
});
const isDetached = ({ data }: Plain): boolean => data.length === 0;

/** Undivided calls go to one worker, others to several. */
const kinds = [
  ['one worker, messages', { workers: 1, exchange: 'messages' }, true],
  ['three workers, messages', { workers: 3, exchange: 'messages', leastWork: 1 }, true],
  ['three workers, shared memory', { workers: 3, leastWork: 1 }, false],
] as const;

describe.each(kinds)('%s', (_, options, transfers) => {
  test('operands are taken and come back, and the results are the same', async () => {
    const pool = await open(options);
    const given = someOperands();
    const mask = { shape: [40, 40], data: Uint8Array.from({ length: 1600 }, (_, at) => at % 3) };
    const before = Object.entries(given).map(([name, each]) => [name, copyOf(each)] as const);
    const expected = mh.attention(given.q, given.k, given.v, { mask, return: ['lse'] });
    const call = pool.attention(given.q, given.k, given.v, { mask, return: ['lse'], transfer: true });
    expect(Object.values(given).map(isDetached)).toEqual([transfers, transfers, transfers]);
    const { operands, ...results } = await call;
    sameResults(results, expected, 'attention');
    for (const [name, each] of before) expect(operands[name as 'q'].data, name).toEqual(each.data);
    expect(operands.mask?.data).toHaveLength(1600);
    // Call again with the returned buffers.
    const again = await pool.attention(operands.q, operands.k, operands.v, { mask: operands.mask as never, return: ['lse'], transfer: true });
    sameResults({ out: again.out, lse: again.lse }, expected, 'again');

    const { out, lse } = expected;
    const inputs = { ...Object.fromEntries(before), out: copyOf(out), lse: copyOf(lse), dOut: filled(r, ...out.shape) } as never;
    const plainMask = { shape: [40, 40], data: Uint8Array.from({ length: 1600 }, (_, at) => at % 3) };
    const gradients = mh.attentionBackward(inputs, { mask: plainMask });
    const { operands: back, ...actual } = await pool.attentionBackward(inputs, { mask: plainMask, transfer: true });
    sameResults(actual, gradients, 'attentionBackward');
    expect(Object.keys(back).sort()).toEqual(['dOut', 'k', 'lse', 'mask', 'out', 'q', 'v']);
    for (const each of [out, lse, ...Object.values(gradients)]) if ('dispose' in each) each.dispose();
  });

  test('packed sequences, whose operands share one buffer', async () => {
    const pool = await open(options);
    const all = r.floats(3 * 90 * 2 * 8);
    const part = (index: number): Plain => ({ shape: [90, 2, 8], data: all.subarray(index * 1440, (index + 1) * 1440) });
    const cu = { cuQ: Int32Array.of(0, 50, 90), cuK: Int32Array.of(0, 50, 90) };
    const { out, lse } = mh.attentionVarlen(part(0), part(1), part(2), { ...cu, return: ['lse'] });
    const { operands, ...results } = await pool.attentionVarlen(part(0), part(1), part(2), { ...cu, return: ['lse'], transfer: true });
    sameResults(results, { out, lse }, 'attentionVarlen');
    expect(all.length === 0).toBe(transfers);
    expect(operands.q.data.buffer).toBe(operands.v.data.buffer);
    const inputs = { ...operands, out: copyOf(out), lse: copyOf(lse), dOut: filled(r, 90, 2, 8) };
    const gradients = mh.attentionVarlenBackward(inputs as never, cu);
    const { operands: back, ...actual } = await pool.attentionVarlenBackward(inputs as never, { ...cu, transfer: true });
    sameResults(actual, gradients, 'attentionVarlenBackward');
    expect(back.q.data).toHaveLength(1440);
    for (const each of [out, lse, gradients.dQ, gradients.dK, gradients.dV]) each.dispose();
  });

  test('a refused call takes nothing, or gives it back with the error', async () => {
    const pool = await open(options);
    const { q, k, v } = someOperands();
    const wrong = await rejectionOf(pool.attention(q, k, v, { sinks: new Float32Array(3), transfer: true }));
    expect([wrong.argument, isDetached(q), wrong.operands]).toEqual(['sinks', false, undefined]);
    const option = await rejectionOf(pool.attention(q, k, v, { transfer: 'yes' as never }));
    expect([option.code, option.argument]).toEqual(['E_OPTION', 'transfer']);
    const tensor = mh.tensor(q.data, q.shape);
    expect((await rejectionOf(pool.attention(tensor, k, v, { transfer: true }))).argument).toBe('q');
    tensor.dispose();
    const packed = { ...{ cuQ: Int32Array.of(0, 30), cuK: Int32Array.of(0, 30) }, sinks: new Float32Array(5) };
    const tokens = [filled(r, 30, 2, 8), filled(r, 30, 2, 8), filled(r, 30, 2, 8)] as const;
    const error = await rejectionOf(pool.attentionVarlen(...tokens, { ...packed, transfer: true }));
    expect(error.argument).toBe('sinks');
    expect(error.operands?.['q']?.data).toHaveLength(480);
  });

  test('what has been transferred before is refused by name', async () => {
    const pool = await open(options);
    const { q, k, v } = someOperands();
    structuredClone(k.data, { transfer: [k.data.buffer] });
    const error = await rejectionOf(pool.attention(q, k, v, { transfer: true }));
    expect([error.code, error.argument, isDetached(q)]).toEqual(['E_SHAPE', 'k', false]);
    expect(error.got).toContain('transferred');
  });
});

test('a call that waits gives its operands back when it is aborted, one that runs does not', async () => {
  const pool = await open({ workers: 1, exchange: 'messages' });
  const controller = new AbortController();
  const { signal } = controller;
  const [first, second] = [someOperands(2000), someOperands()];
  const runs = rejectionOf(pool.attention(first.q, first.k, first.v, { transfer: true, signal }));
  const waits = rejectionOf(pool.attention(second.q, second.k, second.v, { transfer: true, signal }));
  const third = someOperands();
  const disposed = rejectionOf(pool.attention(third.q, third.k, third.v, { transfer: true }));
  setTimeout(() => controller.abort(), 2);
  const [ofRunning, ofWaiting] = [await runs, await waits];
  expect([ofRunning.code, ofRunning.operands]).toEqual(['E_ABORTED', undefined]);
  expect([ofWaiting.code, ofWaiting.operands?.['q']?.data.byteLength]).toEqual(['E_ABORTED', 4 * 4 * 40 * 16]);
  pool.dispose();
  expect((await disposed).operands?.['v']?.shape).toEqual([1, 2, 40, 16]);
});

test('operands in a worker that ends are lost', async () => {
  const pool = await open({ workers: 1, exchange: 'messages' });
  const { q, k, v } = someOperands(2000);
  const call = rejectionOf(pool.attention(q, k, v, { transfer: true }));
  await new Promise((resolve) => setTimeout(resolve, 5));
  await [...running][0]?.terminate();
  const error = await call;
  expect([error.code, error.operands]).toEqual(['E_WORKER', undefined]);
});

test('other calls do not know transfer', async () => {
  const pool = await open({ workers: 1 });
  const call = pool.linear(filled(r, 3, 4), filled(r, 2, 4), { transfer: true } as never);
  expect((await rejectionOf(call)).argument).toBe('transfer');
});
