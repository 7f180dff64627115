import type { CacheAttendOptions, KVCache } from 'multihead';
import { describe, expect, it } from 'vitest';
import { CacheModel, dtypes, layouts } from './cache_model.ts';
import { builds, errorOf, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed, type Random } from './random.ts';
import {
  capturedPart,
  caseCount,
  filled,
  product,
  randomBias,
  randomDropout,
  randomMask,
  randomScoring,
  stageTolerance,
  stored,
  tolerance,
} from './random_case.ts';
import * as reference from './reference.ts';

const kinds = layouts.flatMap((layout) => dtypes.map((dtype) => [layout, dtype] as const));

/** Random options of attend(), and the equivalent options for plain attention over the same keys. */
function randomAttend(r: Random, model: CacheModel, heads: number, queries: number) {
  const { batch } = model.config;
  const keys = model.longest;
  const causal = r.next() < 0.5 ? ('bottomRight' as const) : false;
  const captures = [
    { stage: r.pick(['raw', 'capped', 'masked', 'weights'] as const) },
    { stage: 'weights' as const, heads: [heads - 1], rows: [queries - 1, 1] as const },
  ];
  const dropout = randomDropout(r);
  const options = {
    causal,
    ...randomScoring(r, heads),
    ...dropout,
    ...(r.next() < 0.3 ? { window: { left: r.int(0, 6) } } : {}),
    ...(r.next() < 0.3 ? { mask: randomMask(r, [batch, 1, 1, keys]) } : {}),
    ...(r.next() < 0.3 ? { bias: randomBias(r, [queries, keys]) } : {}),
    return: ['lse', 'weights', ...('dropout' in dropout ? (['dropoutMask'] as const) : [])],
    capture: captures,
  } satisfies CacheAttendOptions;
  const { window } = options;
  const plain: reference.ReferenceOptions = {
    ...options,
    causal: causal && 'bottomRightOfLength',
    ...(window ? { window: { ...window, align: 'bottomRightOfLength' } } : {}),
    kvLengths: Int32Array.from({ length: batch }, (_, b) => model.length(b)),
    firstKept: model.firsts,
    alibiOfLength: true,
  };
  return { options, plain, captures };
}

describe.each(builds)('KV cache, %s', async (simd) => {
  const mh = await loadBuild(simd);

  describe.each(kinds)('%s, %s', (layout, dtype) => {
    it('decodes token by token with the results of one pass over all tokens', () => {
      const r = random(51);
      const [heads, numKvHeads, tokens, width, valueDim] = [4, 2, 45, 8, 5];
      const window = 6;
      const q = filled(r, 1, heads, tokens, width);
      const k = filled(r, 1, numKvHeads, tokens, width);
      const v = filled(r, 1, numKvHeads, tokens, valueDim);
      const windowed = layout === 'ring' ? { window: { left: window } } : {};
      const model = new CacheModel({ batch: 1, numKvHeads, headDim: width, valueDim, capacity: tokens }, 'contiguous', dtype);
      model.append(k, v, [tokens]);
      const onePass = reference.attention(q, model.tensor(model.keys, width), model.tensor(model.values, valueDim), {
        causal: 'topLeft',
        ...windowed,
      });
      // A ring with no more capacity than the window needs.
      const capacity = layout === 'ring' ? window + 1 : tokens;
      mh.scope(() => {
        const cache = mh.createCache({
          ...{ numKvHeads, headDim: width, valueDim, capacity, layout, dtype },
          ...(layout === 'paged' ? { pageSize: 4 } : {}),
        });
        for (let i = 0; i < tokens; i += 1) {
          mh.scope(() => {
            const row = ({ shape, data }: typeof q) => {
              const [, rowHeads = 0, rows = 0, d = 0] = shape;
              const parts = Array.from({ length: rowHeads }, (_, h) => [...data.subarray((h * rows + i) * d, (h * rows + i + 1) * d)]);
              return { shape: [1, rowHeads, 1, d], data: Float32Array.from(parts.flat()) };
            };
            cache.append(row(k), row(v));
            const { out, lse } = cache.attend(row(q), {
              causal: 'bottomRight',
              ...windowed,
              return: ['lse'],
            });
            for (let h = 0; h < heads; h += 1) {
              const at = h * tokens + i;
              const wanted = onePass.out.subarray(at * valueDim, (at + 1) * valueDim);
              const got = out.data.subarray(h * valueDim, (h + 1) * valueDim);
              expect(reference.maxDifference(got, wanted), `head ${h}, token ${i}`).toBeLessThan(2e-6);
              expect(lse.data[h]).toBeCloseTo(onePass.lse[at] as number, 5);
            }
          });
        }
        expect(cache.length()).toBe(tokens);
        expect(cache.firstKept()).toBe(tokens - capacity);
      });
    });

    it(`agrees with float64 after any appends, truncations and masks (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
      for (let session = 0; session < caseCount(6); session += 1) {
        const seed = runSeed + session;
        const r = random(seed);
        const numKvHeads = r.int(1, 2);
        const heads = numKvHeads * r.pick([1, 2]);
        const [batch, capacity] = [r.int(1, 3), r.pick([1, 7, 20, 70])];
        const [headDim, valueDim] = [r.pick([1, 4, 8, 33]), r.pick([1, 5, 8])];
        const config = { batch, numKvHeads, headDim, valueDim, capacity };
        const model = new CacheModel(config, layout, dtype);
        mh.scope(() => {
          const pageSize = r.pick([1, 3, 16]);
          const paged = layout === 'paged' ? { pageSize } : {};
          const cache = mh.createCache({ ...config, ...paged, layout, dtype });
          for (let step = 0; step < 8; step += 1) {
            const label = `seed ${seed}, step ${step}: ${JSON.stringify({ ...config, ...paged })}`;
            mh.scope(() => {
              change(r, cache, model);
              compare(r, cache, model, heads, label);
            });
          }
        });
      }
      expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
    });

    it('truncates: tokens that were removed have no effect', () => {
      const r = random(52);
      const [k, v] = [filled(r, 1, 1, 5, 4), filled(r, 1, 1, 5, 4)];
      const bad = { shape: [1, 1, 3, 4], data: new Float32Array(12).fill(NaN) };
      const q = filled(r, 1, 1, 2, 4);
      mh.scope(() => {
        const cache = mh.createCache({ numKvHeads: 1, headDim: 4, capacity: 9, layout, dtype });
        cache.append(k, v);
        const before = cache.attend(q, { causal: 'bottomRight' }).out.data.slice();
        cache.append(bad, bad);
        cache.truncate(5, 0);
        expect(cache.attend(q, { causal: 'bottomRight' }).out.data).toEqual(before);
        cache.clear();
        expect([cache.length(), cache.firstKept()]).toEqual([0, 0]);
        expect(cache.attend(q).out.data.every((x) => x === 0)).toBe(true);
        cache.append(k, v);
        expect(cache.attend(q, { causal: 'bottomRight' }).out.data).toEqual(before);
      });
    });
  });

  /** One append, truncation or clearing, applied to the cache and to its model. */
  function change(r: Random, cache: KVCache, model: CacheModel): void {
    const { batch, numKvHeads, headDim, valueDim, capacity } = model.config;
    const what = r.next();
    if (what < 0.05) {
      cache.clear();
      for (let b = 0; b < batch; b += 1) model.truncate(b, 0);
    } else if (what < 0.25) {
      const b = r.int(0, batch - 1);
      const length = r.int(0, model.length(b));
      cache.truncate(length, b);
      model.truncate(b, length);
    } else {
      const room = (b: number) => (model.ring ? 2 * capacity : capacity - model.length(b));
      const counts = Array.from({ length: batch }, (_, b) => Math.min(r.int(0, 12), room(b)));
      const even = Math.min(...counts);
      const all = r.next() < 0.5;
      const count = all ? even : Math.max(...counts);
      const given = all ? undefined : Int32Array.from(counts);
      const dtype = r.pick(['f32', 'f32', 'f16', 'bf16'] as const);
      const tokens = (width: number) => {
        const shape = [batch, numKvHeads, count, width];
        return stored(dtype, shape, r.floats(product(shape)));
      };
      const [k, v] = [tokens(headDim), tokens(valueDim)];
      cache.append(k.given, v.given, given);
      model.append(k.plain, v.plain, all ? counts.map(() => even) : counts);
    }
    for (let b = 0; b < batch; b += 1) {
      expect(cache.length(b)).toBe(model.length(b));
      expect(cache.firstKept(b)).toBe(model.firsts[b]);
    }
  }

  function compare(r: Random, cache: KVCache, model: CacheModel, heads: number, label: string): void {
    const { batch, headDim, valueDim } = model.config;
    const queries = r.pick([1, 1, 3, 9]);
    const q = filled(r, batch, heads, queries, headDim);
    const { options, plain, captures } = randomAttend(r, model, heads, queries);
    const expected = reference.attention(q, model.tensor(model.keys, headDim), model.tensor(model.values, valueDim), plain);
    const allowed = tolerance(headDim, plain as object, expected);
    if (options.window && model.loses(queries, options.window.left)) {
      expectRefused(mh, () => cache.attend(q, options), 'E_OPTION', 'q', 'ring');
      return;
    }
    const result = cache.attend(q, options);
    const text = `${label}, ${JSON.stringify(plain, (_, x: unknown) => (typeof x === 'bigint' ? `${x}n` : x))}`;
    const extents = [batch, heads, queries, model.longest] as const;
    const survivors = 1 - (options.dropout?.probability ?? 0);
    const near = (name: string, got: ArrayLike<number>, wanted: ArrayLike<number>, limit = allowed) =>
      expect(reference.maxDifference(got, wanted), `${name}, ${text}`).toBeLessThan(limit);
    near('out', result.out.data, expected.out, allowed / survivors);
    near('lse', result.lse?.data ?? [], expected.lse, 4 * allowed);
    near('weights', result.weights?.data ?? [], expected.weights);
    if (options.dropout) expect(result.dropoutMask?.data, text).toEqual(expected.dropoutMask);
    captures.forEach((capture, index) => {
      const part = capturedPart(expected[capture.stage], extents, capture);
      expect(result.captures?.[index]?.shape, text).toEqual(part.shape);
      const limit = stageTolerance(capture.stage, allowed);
      near(capture.stage, result.captures?.[index]?.data ?? [], part.data, limit);
    });
  }

  it('has its configuration as properties, counts in memory(), and is disposed like a tensor', () => {
    const before = mh.memory();
    const cache = mh.createCache({ numKvHeads: 2, headDim: 8, capacity: 16, layout: 'paged' });
    expect(cache).toMatchObject({
      ...{ batch: 1, numKvHeads: 2, headDim: 8, valueDim: 8, capacity: 16 },
      ...{ layout: 'paged', dtype: 'f32', disposed: false },
    });
    expect(cache.bytes).toBeGreaterThanOrEqual(2 * 16 * 2 * 8 * 4);
    expect(mh.memory()).toMatchObject({
      live: before.live + 1,
      bytes: before.bytes + cache.bytes,
    });
    cache.append(filled(random(1), 1, 2, 3, 8), filled(random(2), 1, 2, 3, 8));
    expect(mh.memory().bytes).toBe(before.bytes + cache.bytes);
    cache.dispose();
    cache.dispose();
    cache[Symbol.dispose]();
    expect(cache.disposed).toBe(true);
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
    for (const call of [
      () => cache.append(filled(random(1), 1, 2, 1, 8), filled(random(2), 1, 2, 1, 8)),
      () => cache.attend(filled(random(1), 1, 2, 1, 8)),
      () => cache.truncate(0, 0),
      () => cache.clear(),
      () => cache.length(),
      () => cache.firstKept(),
    ]) {
      expect(errorOf(call)).toMatchObject({ code: 'E_DISPOSED', argument: 'cache' });
    }
    const result = mh.scope(() => {
      mh.createCache({ numKvHeads: 1, headDim: 1, capacity: 1 });
      return { cache: mh.createCache({ numKvHeads: 1, headDim: 1, capacity: 1 }) };
    });
    expect(mh.memory().live).toBe(before.live + 1);
    result.cache.dispose();
  });

  it('takes less memory with smaller dtypes', () => {
    mh.scope(() => {
      const bytes = dtypes.map((dtype) => mh.createCache({ numKvHeads: 4, headDim: 64, capacity: 100, dtype }).bytes);
      const [f32 = 0, f16 = 0, bf16 = 0, int8 = 0] = bytes;
      expect(f16).toBeLessThan(0.51 * f32);
      expect(bf16).toBe(f16);
      expect(int8).toBeLessThan(0.28 * f32);
    });
  });

  it('takes pages from the pool, and returns them', () => {
    const token = (count: number) => filled(random(3), 2, 1, count, 4);
    mh.scope(() => {
      const cache = mh.createCache({
        ...{ batch: 2, numKvHeads: 1, headDim: 4, capacity: 12 },
        ...{ layout: 'paged', pageSize: 4, pages: 4 },
      });
      const append = (first: number, second: number) => cache.append(token(12), token(12), new Int32Array([first, second]));
      append(12, 4);
      expect(errorOf(() => append(0, 1))).toMatchObject({ code: 'E_OPTION', argument: 'k' });
      expect([cache.length(0), cache.length(1)]).toEqual([12, 4]);
      cache.truncate(8, 0);
      append(0, 4);
      expect([cache.length(0), cache.length(1)]).toEqual([8, 8]);
    });
  });
});
