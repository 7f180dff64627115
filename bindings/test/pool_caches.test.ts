// Caches in several workers, each with the keys and values of its heads: bit-identical to one thread; and their memory.

import { load, type CacheAttendOptions, type KVCacheConfig, type Multihead, type TransformerConfig } from 'multihead';
import { createPool, type Pool } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { dtypes, layouts } from './cache_model.ts';
import { sameOfBoth, sameResults } from './pool_results.ts';
import { running, until } from './pool_threads.ts';
import { random, runSeed, type Random } from './random.ts';
import { chance, filled, randomBias, randomCaptures, randomDropout, randomMask, randomScoring } from './random_case.ts';
import { described, parameters, resolved } from './random_module.ts';

let mh: Multihead;
const pools: Pool[] = [];
beforeAll(async () => {
  mh = await load();
  for (const workers of [1, 2, 3, 5]) pools.push(await createPool({ workers }));
  // With messages, an object lives in one worker.
  pools.push(await createPool({ workers: 3, exchange: 'messages' }));
});
afterAll(() => pools.forEach((pool) => pool.dispose()));

const kinds = ['1 worker', '2 workers', '3 workers', '5 workers', 'workers without shared memory'];

function randomConfig(r: Random): KVCacheConfig {
  const layout = r.pick(layouts);
  return {
    ...{ batch: r.int(1, 2), numKvHeads: r.int(1, 6), headDim: r.pick([4, 16, 33]), capacity: r.pick([20, 300]) },
    ...{ layout, dtype: r.pick(dtypes) },
    ...(chance(r, 0.3) && { valueDim: r.pick([5, 16]) }),
    ...(layout === 'paged' && { pageSize: r.pick([1, 7, 16]), ...(chance(r, 0.3) && { pages: r.int(3, 20) }) }),
  };
}

function randomAttend(r: Random, batch: number, heads: number, queries: number, keys: number): CacheAttendOptions {
  const dropout = randomDropout(r);
  return {
    ...(chance(r, 0.5) && { causal: 'bottomRight' as const }),
    ...(chance(r, 0.3) && { window: { left: r.int(0, 30) } }),
    ...randomScoring(r, heads),
    ...dropout,
    ...(chance(r, 0.3) && { mask: randomMask(r, [batch, 1, 1, keys]) }),
    ...(chance(r, 0.3) && { bias: randomBias(r, [heads, queries, keys].slice(r.int(0, 1))) }),
    ...(chance(r, 0.2) && { outDtype: 'bf16' as const }),
    ...(chance(r, 0.5) && {
      return: ['lse', ...(chance(r, 0.5) ? ['weights' as const] : []), ...('dropout' in dropout ? ['dropoutMask' as const] : [])],
    }),
    capture: randomCaptures(r, heads, queries),
  };
}

describe.each(kinds.map((name, index) => ({ name, index })))('in $name', ({ index }) => {
  test('random sequences of calls of a cache', async () => {
    const pool = pools[index] as Pool;
    for (let seed = runSeed; seed < runSeed + 12; seed += 1) {
      const r = random(seed);
      const config = randomConfig(r);
      const { batch = 1, numKvHeads, headDim, valueDim = headDim } = config;
      const label = `seed ${seed}, ${described(config)}`;
      const [local, remote] = [mh.createCache(config), await pool.createCache(config, { workers: 'all' })];
      expect([remote.numKvHeads, remote.capacity, remote.layout], label).toEqual([numKvHeads, local.capacity, local.layout]);
      for (let call = 0; call < 12; call += 1) {
        const entry = r.int(0, batch - 1);
        const kind = r.next();
        if (kind < 0.4) {
          const tokens = r.pick([1, 1, 5, 90]);
          const counts = chance(r, 0.4) ? Int32Array.from({ length: batch }, () => r.int(0, tokens)) : undefined;
          const [k, v] = [filled(r, batch, numKvHeads, tokens, headDim), filled(r, batch, numKvHeads, tokens, valueDim)];
          await sameOfBoth(
            () => local.append(k, v, counts),
            () => remote.append(k, v, counts),
            label,
          );
        } else if (kind < 0.9) {
          const heads = numKvHeads * r.pick([1, 2, 3]);
          const queries = r.pick([1, 1, 2, 30]);
          const keys = Math.max(...Array.from({ length: batch }, (_, b) => local.length(b)));
          const options = randomAttend(r, batch, heads, queries, keys);
          const q = filled(r, batch, heads, queries, chance(r, 0.05) ? headDim + 1 : headDim);
          await sameOfBoth(
            () => local.attend(q, options),
            () => remote.attend(q, options),
            `${label}, call ${call}: ${queries} queries, ${described(options)}`,
          );
        } else if (kind < 0.97) {
          const rest = r.int(0, local.length(entry) + (chance(r, 0.1) ? 1 : 0));
          await sameOfBoth(
            () => local.truncate(rest, entry),
            () => remote.truncate(rest, entry),
            label,
          );
        } else {
          local.clear();
          await remote.clear();
        }
        expect(await Promise.all([remote.length(entry), remote.firstKept(entry)]), label).toEqual([local.length(entry), local.firstKept(entry)]);
      }
      for (const each of [local, remote]) each.dispose();
    }
  });

  test('random steps of layers', async () => {
    const pool = pools[index] as Pool;
    for (let seed = runSeed; seed < runSeed + 8; seed += 1) {
      const r = random(seed);
      const numKvHeads = r.int(1, 6);
      const given = {
        ...{ embedDim: r.pick([40, 96, 160]), numHeads: numKvHeads * r.pick([1, 2, 3]), numKvHeads, headDim: r.pick([8, 20, 32]) },
        ...(chance(r, 0.3) && { valueDim: r.int(5, 40) }),
        ...(chance(r, 0.3) && { qkNorm: true }),
        ...(chance(r, 0.4) && { rope: { style: 'half' as const } }),
        ...(chance(r, 0.3) && { sinks: true }),
        window: { left: 12 },
      };
      const batch = r.int(1, 2);
      const layout = r.pick(layouts);
      const kept = { batch, capacity: 40, layout, dtype: r.pick(dtypes), ...(layout === 'paged' && { pageSize: 5 }) };
      const label = `seed ${seed}, ${described(given)}, ${described(kept)}`;
      const [local, remote] = [mh.multiHeadAttention(given), await pool.multiHeadAttention(given, { workers: 'all' })];
      const dict = parameters(r, resolved(given));
      local.loadStateDict(dict);
      await remote.loadStateDict(dict);
      const caches = [local.createCache(kept), await remote.createCache(kept)] as const;
      for (let call = 0; call < 10; call += 1) {
        if (chance(r, 0.2)) {
          const length = chance(r, 0.2) ? 2 ** 32 + 1 : r.int(0, caches[0].length());
          await sameOfBoth(
            () => caches[0].truncate(length),
            () => caches[1].truncate(length),
            label,
          );
        }
        const x = filled(r, batch, r.pick([1, 1, 3, 9]), given.embedDim);
        const options = {
          ...(chance(r, 0.4) && { return: ['weights', 'meanWeights'] as const }),
          ...(chance(r, 0.3) && { trace: ['scores', 'maskedScores', 'weights', 'headsOut'] as const }),
        };
        await sameOfBoth(
          () => local.step(x, caches[0], options as object),
          () => remote.step(x, caches[1], options as object),
          `${label}, ${described(options)}`,
        );
        expect(await caches[1].length(), label).toBe(caches[0].length());
      }
      for (const each of [local, remote, ...caches]) each.dispose();
    }
  });
});

const model: TransformerConfig = { embedDim: 192, numHeads: 12, numLayers: 3, vocabSize: 500, mlpDim: 192, rope: { style: 'half' } };

test.each([1, 2, 3, 5])('of %s workers each holds the keys and values of its heads', async (workers) => {
  using pool = await createPool({ workers });
  const memories = () => Promise.all(Array.from({ length: workers }, () => pool.memory()));
  const remote = await pool.transformer(model, { workers: 'all' });
  await remote.initialize();
  for (const storage of [{}, { layout: 'paged', dtype: 'int8' }, { dtype: 'bf16' }] as const) {
    const kept = { capacity: 1024, ...storage };
    const local = mh.transformer(model);
    const whole = local.createCache(kept);
    const before = await memories();
    const cache = await remote.createCache(kept);
    const parts = (await memories()).map(({ bytes }, worker) => bytes - (before[worker]?.bytes ?? 0));
    expect(parts.reduce((sum, bytes) => sum + bytes, 0)).toBeGreaterThanOrEqual(whole.bytes);
    for (const bytes of parts) expect(bytes / whole.bytes).toBeLessThan(Math.ceil(12 / workers) / 12 + 0.02);
    expect(cache.bytes).toBeLessThan((1 / workers + 0.02) * whole.bytes);
    for (const each of [whole, local, cache]) each.dispose();
  }
});

test('workers that end in the middle of steps', async () => {
  using pool = await createPool({ workers: 3 });
  const local = mh.transformer(model);
  local.initialize({ seed: 2 });
  const kept = { capacity: 200 };
  const tokens = Int32Array.from({ length: 40 }, (_, at) => (at * 61) % 500);
  const ofOne = local.createCache(kept);
  const expected = [0, 1, 2, 3, 4].map((call) => local.step(tokens.subarray(call, call + 1 + 5 * call), ofOne).logits);
  const r = random(7);
  let [ended, whole] = [0, 0];
  for (let round = 0; round < 20; round += 1) {
    const threads = new Set(running);
    const remote = await pool.transformer(model, { workers: 'all' });
    await remote.initialize({ seed: 2 });
    const cache = await remote.createCache(kept);
    const calls = expected.map((_, call) => remote.step(tokens.subarray(call, call + 1 + 5 * call), cache));
    const settled = Promise.allSettled(calls);
    if (round % 2 === 0) await new Promise((resolve) => setTimeout(resolve, r.int(0, 4)));
    const own = [...running].filter((thread) => threads.has(thread));
    if (round % 4 !== 3) await own[r.int(0, own.length - 1)]?.terminate();
    for (const [call, result] of (await settled).entries()) {
      if (result.status === 'rejected') {
        expect((result.reason as { code: string }).code).toBe('E_WORKER');
        ended += 1;
      } else {
        sameResults({ logits: result.value.logits }, { logits: expected[call] }, `round ${round}`);
        whole += 1;
      }
    }
    for (const each of [cache, remote]) each.dispose();
    await until(() => pool.backend.workers === 3);
  }
  expect(ended).toBeGreaterThan(0);
  expect(whole).toBeGreaterThan(0);
  for (const each of [...expected, ofOne, local]) each.dispose();
});
