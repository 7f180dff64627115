// The results of a pool have the bits of one thread, for every option and any number of workers.

import type { AttentionOptions, Multihead } from 'multihead';
import type { Pool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { builds, loadBuild } from './builds.ts';
import { inEach, openPools, sameResults, type Results } from './pool_results.ts';
import { random } from './random.ts';
import { caseCount, chance, filled, randomBias, randomCase, randomMask, randomScoring } from './random_case.ts';

describe.each(builds)('%s', (simd) => {
  let mh: Multihead;
  let pools: Pool[];
  beforeAll(async () => {
    mh = await loadBuild(simd);
    pools = await openPools(simd);
  });
  afterAll(() => pools.forEach((pool) => pool.dispose()));

  test('random calls with every option', async () => {
    for (let seed = 1; seed <= caseCount(120); seed += 1) {
      const { q, k, v, options, label } = randomCase(seed);
      const expected = mh.scope(() => mh.attention(q.given, k.given, v.given, options as AttentionOptions));
      await inEach(pools, async (pool) => {
        const actual = await pool.attention(q.given, k.given, v.given, options as object);
        sameResults(actual, expected, `${pool.backend.workers} workers, ${label}`);
      });
      Object.values(expected as unknown as Results).flat().forEach((tensor) => tensor.dispose());
    }
  });

  test('calls that are divided by rows, and decoding with many keys', async () => {
    for (let seed = 1; seed <= caseCount(40); seed += 1) {
      const r = random(1000 + seed);
      const kvHeads = r.int(1, 2);
      const heads = kvHeads * r.pick([1, 2, 3]);
      const decoding = chance(r, 0.4);
      const [queries, keys] = decoding ? [r.int(1, 4), r.int(600, 2500)] : [r.int(60, 400), r.int(1, 700)];
      const [batch, width, valueDim] = [r.int(1, 2), r.pick([16, 33, 64]), r.pick([8, 64, 70])];
      const q = filled(r, batch, heads, queries, width);
      const k = filled(r, batch, kvHeads, keys, width);
      const v = filled(r, batch, kvHeads, keys, valueDim);
      const causal = r.pick([false, 'topLeft', 'bottomRight', { offset: r.int(-20, 20) }] as const);
      const rows = [queries >> 1, queries - (queries >> 1)] as const;
      const options = {
        ...randomScoring(r, heads),
        causal,
        ...(chance(r, 0.3) ? { window: { left: r.int(0, 100) } } : {}),
        ...(chance(r, 0.2) ? { mask: randomMask(r, [batch, 1, queries, keys]) } : {}),
        ...(chance(r, 0.2) ? { bias: randomBias(r, [1, heads, 1, keys]) } : {}),
        ...(chance(r, 0.2) ? { dropout: { probability: 0.3, seed: seed } } : {}),
        ...(chance(r, 0.3) ? { rope: { style: 'half' as const, rotaryDim: 8 } } : {}),
        ...(chance(r, 0.3) ? { capture: [{ stage: 'masked' as const, heads: [heads - 1], rows }] } : {}),
        return: ['lse'] as const,
      } satisfies AttentionOptions;
      const expected = mh.attention(q, k, v, options);
      await inEach(pools, async (pool) => {
        const label = `seed ${seed}, ${pool.backend.workers} workers`;
        sameResults(await pool.attention(q, k, v, options), expected, label);
      });
      Object.values(expected as unknown as Results).flat().forEach((tensor) => tensor.dispose());
    }
  });

  test('scores, in the same chunks and order', async () => {
    const r = random(7);
    const [q, k] = [filled(r, 1, 3, 150, 16), filled(r, 1, 1, 90, 16)];
    for (const options of [
      { stage: 'weights', chunk: 16, causal: 'topLeft' },
      { stage: 'raw', heads: [2, 0], rows: [3, 100] },
      { stage: 'masked', head: 1, rows: [150, 0] },
    ] as const) {
      const expected = [...mh.scores(q, k, options)];
      await inEach(pools, async (pool) => {
        const actual = [];
        for await (const rows of pool.scores(q, k, options)) actual.push(rows);
        expect(actual).toEqual(expected);
      });
    }
  });

  test('operands and out in shared memory are read and written where they are', async () => {
    const r = random(9);
    const shared = (shape: number[]) => {
      const { data } = filled(r, ...shape);
      const own = new Float32Array(new SharedArrayBuffer(data.byteLength + 64), 64, data.length);
      own.set(data);
      return { shape, data: own };
    };
    const [q, k, v] = [shared([2, 4, 130, 16]), shared([2, 2, 70, 16]), shared([2, 2, 70, 8])] as const;
    const out = { shape: [2, 4, 130, 8], data: new Float32Array(new SharedArrayBuffer(4 * 2 * 4 * 130 * 8)) };
    const expected = mh.attention(q, k, v, { causal: 'bottomRight', return: ['lse'] });
    await inEach(pools, async (pool) => {
      out.data.fill(NaN);
      const actual = await pool.attention(q, k, v, { causal: 'bottomRight', return: ['lse'], out });
      expect(actual.out.data).toBe(out.data);
      sameResults(actual, expected, `${pool.backend.workers} workers`);
    });
  });
});
