// Arguments that run the caller's code when they are read: each is read once. This code cannot cause a wrong result, an
// error that is not a MultiheadError, or a promise that never settles.

import { load, type Multihead } from 'multihead';
import { createPool, type Pool } from 'multihead/pool';
import { afterEach, beforeAll, describe, expect, test } from 'vitest';
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
type Plain = { shape: number[]; data: Float32Array };
const operands = () => ({ q: filled(r, 1, 2, 20, 8), k: filled(r, 1, 2, 30, 8), v: filled(r, 1, 2, 30, 8) });

/** Returns the contents of `tensor` at the first read, and other contents at later reads. */
function changing({ shape, data }: Plain): Plain & { reads: Record<string, number> } {
  const reads: Record<string, number> = { shape: 0, data: 0 };
  const once = <T>(name: string, first: T, then: T): T => ((reads[name] = (reads[name] ?? 0) + 1) === 1 ? first : then);
  return {
    reads,
    get shape() {
      return once('shape', shape, [1, 1, 1, 2 ** 30]);
    },
    get data() {
      return once('data', data, new Float32Array(3));
    },
  };
}

/** Runs code when its data are read. */
const trapped = ({ shape, data }: Plain, trap: () => void): Plain => ({
  shape,
  get data() {
    trap();
    return data;
  },
});

const detach = (array: Float32Array): void => void structuredClone(array.buffer, { transfer: [array.buffer] });

describe('getters', () => {
  test('that change their answer are asked once', async () => {
    const pool = await open();
    const { q, k, v } = operands();
    const mask = { shape: [20, 30], data: Uint8Array.from({ length: 600 }, (_, at) => at % 3) };
    const given = [q, k, v].map(changing) as unknown as [Plain, Plain, Plain];
    const expected = mh.attention(q, k, v, { mask, return: ['lse'] });
    const ofMask = changing(mask as never);
    const actual = await pool.attention(...given, { mask: ofMask as never, return: ['lse'] });
    sameResults(actual, expected, 'attention');
    for (const each of [...given, ofMask]) expect(each).toHaveProperty('reads', { shape: 1, data: 1 });

    const { out, lse } = expected;
    const dOut = filled(r, 1, 2, 20, 8);
    const plain = { q, k, v, out: { ...copy(out) }, lse: copy(lse), dOut };
    const traps = Object.fromEntries(Object.entries(plain).map(([name, each]) => [name, changing(each as Plain)]));
    const gradients = mh.attentionBackward(plain, { mask });
    sameResults(await pool.attentionBackward(traps as never, { mask }), gradients, 'attentionBackward');
    for (const each of Object.values(traps)) expect(each.reads).toEqual({ shape: 1, data: 1 });

    const cu = { cuQ: Int32Array.of(0, 5, 20), cuK: Int32Array.of(0, 9, 30) };
    const [tq, tk, tv] = [filled(r, 20, 2, 8), filled(r, 30, 2, 8), filled(r, 30, 2, 8)];
    const ofTokens = [tq, tk, tv].map(changing) as unknown as [Plain, Plain, Plain];
    const packed = mh.attentionVarlen(tq, tk, tv, cu);
    sameResults(await pool.attentionVarlen(...ofTokens, cu), packed, 'attentionVarlen');
    for (const each of ofTokens) expect(each).toHaveProperty('reads', { shape: 1, data: 1 });

    const [sq, sk] = [changing(q), changing(k)];
    const rows = [];
    for await (const each of pool.scores(sq, sk, { stage: 'raw', chunk: 4 })) rows.push(each);
    expect(rows).toEqual([...mh.scores(q, k, { stage: 'raw', chunk: 4 })]);
    for (const each of [sq, sk]) expect(each.reads).toEqual({ shape: 1, data: 1 });
    for (const each of [...Object.values(expected), ...Object.values(gradients), packed.out]) {
      if ('dispose' in each) each.dispose();
    }
  });

  test('that throw are an error that names the argument', async () => {
    const pool = await open();
    const { q, k, v } = operands();
    const throws = trapped(k, () => {
      throw new RangeError('on purpose');
    });
    const error = await rejectionOf(pool.attention(q, throws, v));
    expect([error.code, error.argument]).toEqual(['E_OPTION', 'k']);
    expect(() => mh.attention(q, throws, v)).toThrow(error.message);
    expect((await pool.attention(q, k, v)).out.shape).toEqual([1, 2, 20, 8]);
  });

  test('that detach or dispose what was read before', async () => {
    const pool = await open();
    const { q, k, v } = operands();
    const detached = await rejectionOf(pool.attention(q, k, trapped(v, () => detach(q.data))));
    expect([detached.code, detached.argument]).toEqual(['E_SHAPE', 'q']);
    expect(detached.got).toContain('detached');
    const tensor = mh.zeros([1, 2, 20, 8]);
    const disposed = await rejectionOf(pool.attention(tensor, k, trapped(v, () => tensor.dispose())));
    expect([disposed.code, disposed.argument]).toEqual(['E_DISPOSED', 'q']);
    const fresh = operands();
    expect((await pool.attention(fresh.q, fresh.k, fresh.v)).out.shape).toEqual([1, 2, 20, 8]);
  });

  test('that dispose the pool', async () => {
    for (const call of ['attention', 'attentionVarlen', 'linear'] as const) {
      const pool = await open();
      const tokens = filled(r, 10, 2, 8);
      const cu = { cuQ: Int32Array.of(0, 10), cuK: Int32Array.of(0, 10) };
      const { q, k, v } = operands();
      const trap = (tensor: Plain) => trapped(tensor, () => pool.dispose());
      const promise =
        call === 'attention'
          ? pool.attention(q, k, trap(v))
          : call === 'linear'
            ? pool.linear(filled(r, 3, 8), trap(filled(r, 4, 8)))
            : pool.attentionVarlen(tokens, tokens, trap(tokens), cu);
      expect((await rejectionOf(promise as Promise<unknown>)).code, call).toBe('E_DISPOSED');
    }
  });
});

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

const copy = ({ data, shape }: { data: Float32Array; shape: readonly number[] }) => ({ data: data.slice(), shape: [...shape] });
