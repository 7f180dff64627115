// pool.attentionBackward() is bit-identical to one thread, for every option and any number of workers.

import type { AttentionBackwardOptions, AttentionOptions, FloatDType, GradientName, Multihead, Tensor } from 'multihead';
import type { Pool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { builds, loadBuild, rejectionOf } from './builds.ts';
import { inEach, openPools, sameResults } from './pool_results.ts';
import { random, runSeed } from './random.ts';
import { caseCount, filled, randomCase } from './random_case.ts';

const plain = ({ data, shape }: Tensor<FloatDType>) => ({ data: data.slice() as Float32Array, shape: [...shape] });

describe.each(builds)('%s', (simd) => {
  let mh: Multihead;
  let pools: Pool[];
  beforeAll(async () => {
    mh = await loadBuild(simd);
    pools = await openPools(simd);
  });
  afterAll(() => pools.forEach((pool) => pool.dispose()));

  test(`random calls with every option (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, async () => {
    for (let round = 0; round < caseCount(80); round += 1) {
      const { q, k, v, options: all, label } = randomCase(runSeed + round);
      const { capture: _, return: __, outDtype: ___, ...options } = all as AttentionOptions;
      const { out, lse } = mh.attention(q.given, k.given, v.given, { ...options, outDtype: 'f32', return: ['lse'] });
      const r = random(runSeed + round);
      const dOut = filled(r, ...out.shape);
      const inputs = { q: q.given, k: k.given, v: v.given, out: plain(out), lse: plain(lse), dOut };
      const some: GradientName[] = ['dQ', 'dK', 'dV', ...(options.sinks && r.next() < 0.5 ? (['dSinks'] as const) : [])];
      const call = { ...options, ...(r.next() < 0.5 ? { return: some } : {}) } as AttentionBackwardOptions;
      const expected = mh.attentionBackward(inputs, call);
      await inEach(pools, async (pool, workers) => {
        const actual = await pool.attentionBackward(inputs, call as never);
        sameResults(actual, expected, `${workers}, ${label}`);
      });
      for (const each of [out, lse, ...Object.values(expected)]) if ('dispose' in each) each.dispose();
    }
  });

  test('a call of several heads is divided among the workers', async () => {
    const r = random(4);
    const [q, k, v, dOut] = [filled(r, 2, 4, 33, 8), filled(r, 2, 4, 65, 8), filled(r, 2, 4, 65, 8), filled(r, 2, 4, 33, 8)];
    const { out, lse } = mh.attention(q, k, v, { return: ['lse'] });
    const inputs = { q, k, v, out: plain(out), lse: plain(lse), dOut };
    const expected = mh.attentionBackward(inputs);
    await inEach(pools, async (pool, workers) => {
      let parts = 0;
      const progress = (_: number, total: number): void => void (parts = total);
      sameResults(await pool.attentionBackward(inputs, { progress }), expected, workers);
      expect(parts, workers).toBeGreaterThanOrEqual(pool.backend.workers);
    });
    for (const each of [out, lse, ...Object.values(expected)]) if ('dispose' in each) each.dispose();
  });

  test('errors are those of one thread, word for word', async () => {
    const r = random(2);
    const [q, k, v, dOut] = [filled(r, 2, 4, 9, 8), filled(r, 2, 2, 7, 8), filled(r, 2, 2, 7, 6), filled(r, 2, 4, 9, 6)];
    const { out, lse } = mh.attention(q, k, v, { return: ['lse'] });
    const inputs = { q, k, v, out: plain(out), lse: plain(lse), dOut };
    const wrongLse = { shape: lse.shape, data: lse.data.map((each) => each + 3) };
    const calls = [
      [{ ...inputs, lse: wrongLse }, {}],
      [{ ...inputs, lse: undefined }, {}],
      [{ ...inputs, dOut: { shape: [1], data: new Float32Array(1) } }, {}],
      [inputs, { sinks: new Float32Array(3) }],
      [inputs, { causal: 'left' }],
      [inputs, { return: ['dBias'] }],
      [inputs, { return: ['dWrong'] }],
      [inputs, { kvLengths: Int32Array.of(8, 1) }],
      [inputs, { outDtype: 'f16' }],
    ] as [never, never][];
    await inEach(pools, async (pool, workers) => {
      for (const [given, options] of calls) {
        const error = await rejectionOf(pool.attentionBackward(given, options));
        expect(() => mh.attentionBackward(given, options), workers).toThrow(error.message);
      }
    });
    for (const each of [out, lse]) each.dispose();
  });

  test('a call with `out` is refused, because the results come in arrays of their own', async () => {
    const q = filled(random(3), 1, 2, 4, 8);
    const lse = { shape: [1, 2, 4], data: new Float32Array(8) };
    const inputs = { q, k: q, v: q, out: q, lse, dOut: q };
    const error = await rejectionOf((pools[0] as Pool).attentionBackward(inputs, { out: { dQ: q } } as never));
    expect(error).toMatchObject({ code: 'E_OPTION', argument: 'out' });
  });
});
