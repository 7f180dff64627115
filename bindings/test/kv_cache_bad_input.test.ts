// Bad arguments of a KV cache: the call leaves nothing allocated and the cache unchanged, and the next call works.

import type { KVCache, KVCacheConfig } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, loadBuild } from './builds.ts';
import { layouts } from './cache_model.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

describe.each(builds)('KV cache refuses, %s', async (simd) => {
  const mh = await loadBuild(simd);

  const right = { numKvHeads: 2, headDim: 8, capacity: 4 };

  it.each<[object, 'E_OPTION' | 'E_MEMORY', string, ...string[]]>([
    [{ numKvHeads: 0 }, 'E_OPTION', 'numKvHeads', '≥ 1'],
    [{ numKvHeads: undefined }, 'E_OPTION', 'numKvHeads', 'undefined'],
    [{ headDim: -1 }, 'E_OPTION', 'headDim'],
    [{ valueDim: 1.5 }, 'E_OPTION', 'valueDim'],
    [{ capacity: '4' }, 'E_OPTION', 'capacity'],
    [{ batch: 0 }, 'E_OPTION', 'batch'],
    [{ layout: 'circular' }, 'E_OPTION', 'layout', 'ring', 'circular'],
    [{ dtype: 'int4' }, 'E_OPTION', 'dtype', 'int8', 'int4'],
    [{ pageSize: 4 }, 'E_OPTION', 'pageSize', 'paged', 'contiguous'],
    [{ pages: 4, layout: 'ring' }, 'E_OPTION', 'pages', 'paged', 'ring'],
    [{ pageSize: 0, layout: 'paged' }, 'E_OPTION', 'pageSize'],
    [{ pages: 0, layout: 'paged' }, 'E_OPTION', 'pages'],
    [{ maxLength: 4 }, 'E_OPTION', 'maxLength', 'capacity'],
    [{ capacity: 2 ** 31 - 1, numKvHeads: 64, headDim: 128 }, 'E_MEMORY', 'memory', 'heap'],
    [{ capacity: 2 ** 28 }, 'E_MEMORY', 'memory', 'heap'],
  ])('a configuration of %j', (changes, code, argument, ...words) => {
    const call = () => mh.createCache({ ...right, ...changes } as KVCacheConfig);
    const before = mh.memory();
    const error = errorOf(call);
    expect(error.code, error.message).toBe(code);
    expect(error.argument, error.message).toMatch(argument);
    for (const word of words) expect(error.message).toMatch(word);
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
  });

  it.each<[string, Partial<KVCacheConfig>]>([
    ['lengths', { batch: 3e8, dtype: 'int8' }],
    ['a list of free pages', { layout: 'paged', pageSize: 1, pages: 3.5e8, dtype: 'int8' }],
  ])('a cache whose rows alone the memory could hold, but not %s', async (_, changes) => {
    // A separate instance, whose memory has never grown.
    const own = await loadBuild(simd);
    const config = { numKvHeads: 1, headDim: 1, capacity: 1, ...changes };
    expectRefused(own, () => own.createCache(config), 'E_MEMORY', 'memory', 'heap');
  });

  describe.each(layouts)('with layout %s', (layout) => {
    /** Two entries with capacity 4: the first holds 3 tokens, the second 1. */
    function withCache(test: (cache: KVCache) => void): void {
      mh.scope(() => {
        const cache = mh.createCache({ ...right, batch: 2, layout });
        cache.append(tokens(3), tokens(3), new Int32Array([3, 1]));
        test(cache);
      });
    }
    const tokens = (count: number, width = 8) => filled(random(9), 2, 2, count, width);

    /** Expects the cache to give the same results as before. */
    function expectUnchanged(cache: KVCache, fn: () => void): void {
      const attend = () => mh.scope(() => cache.attend(tokens(1), { causal: 'bottomRight' }).out.data.slice());
      const before = attend();
      fn();
      expect([cache.length(0), cache.length(1)]).toEqual([3, 1]);
      expect(attend()).toEqual(before);
    }

    it('tokens that do not fit, and leaves the cache unchanged', () => {
      withCache((cache) =>
        expectUnchanged(cache, () => {
          const append = (k: unknown, v: unknown, counts?: unknown) => () => cache.append(k as never, v as never, counts as never);
          expectRefused(mh, append(tokens(1, 7), tokens(1)), 'E_SHAPE', 'k', '8', '7');
          expectRefused(mh, append(tokens(1), tokens(1, 7)), 'E_SHAPE', 'v', '8', '7');
          expectRefused(mh, append(tokens(1), tokens(2)), 'E_SHAPE', 'v');
          expectRefused(mh, append(filled(random(1), 2, 1, 8), tokens(1)), 'E_SHAPE', 'k');
          expectRefused(mh, append(filled(random(1), 1, 2, 1, 8), tokens(1)), 'E_SHAPE', 'k');
          const counts = (...values: number[]) => append(tokens(2), tokens(2), new Int32Array(values));
          expectRefused(mh, counts(1), 'E_SHAPE', 'counts', '2', '1');
          expectRefused(mh, counts(), 'E_SHAPE', 'counts', '2');
          expectRefused(mh, counts(0, 3), 'E_OPTION', 'counts', '2', '3');
          expectRefused(mh, counts(0, -1), 'E_OPTION', 'counts', '-1');
          expectRefused(mh, append(tokens(1), tokens(1), [1, 1]), 'E_OPTION', 'counts', 'Int32Array');
          expectRefused(mh, append([1], tokens(1)), 'E_OPTION', 'k');
          if (layout === 'ring') return;
          expectRefused(mh, counts(2, 0), 'E_OPTION', 'k', '4', '3');
          expectRefused(mh, append(tokens(2), tokens(2)), 'E_OPTION', 'k', 'capacity');
        }),
      );
    });

    it('truncation to a length, or of an entry, that does not exist', () => {
      withCache((cache) =>
        expectUnchanged(cache, () => {
          expectRefused(mh, () => cache.truncate(0, 2), 'E_OPTION', 'batch', '2');
          expectRefused(mh, () => cache.truncate(0, -1), 'E_OPTION', 'batch');
          expectRefused(mh, () => cache.truncate(2, 1), 'E_OPTION', 'length', '1', '2');
          expectRefused(mh, () => cache.truncate(-1, 0), 'E_OPTION', 'length');
          expectRefused(mh, () => cache.truncate(0.5, 0), 'E_OPTION', 'length', '0.5');
          expectRefused(mh, () => cache.truncate(2 ** 32, 0), 'E_OPTION', 'length');
          expectRefused(mh, () => cache.length(2), 'E_OPTION', 'batch', '0 to 1', '2');
          expectRefused(mh, () => cache.firstKept(-1), 'E_OPTION', 'batch');
        }),
      );
    });

    it('queries and options that do not fit', () => {
      withCache((cache) =>
        expectUnchanged(cache, () => {
          const attend =
            (options: object, q = tokens(1)) =>
            () =>
              cache.attend(q, options as never);
          expectRefused(mh, attend({}, tokens(1, 7)), 'E_SHAPE', 'q', '7');
          expectRefused(mh, attend({}, filled(random(1), 1, 2, 1, 8)), 'E_SHAPE', 'q');
          expectRefused(mh, attend({}, filled(random(1), 2, 1, 8)), 'E_SHAPE', 'q', 'N_q');
          expectRefused(mh, attend({ causal: 'topLeft' }), 'E_OPTION', 'causal', 'bottomRight');
          expectRefused(mh, attend({ causal: { offset: 3 } }), 'E_OPTION', 'causal');
          expectRefused(mh, attend({ kvLengths: new Int32Array(2) }), 'E_OPTION', 'kvLengths', 'knows');
          expectRefused(mh, attend({ rope: { style: 'half' } }), 'E_OPTION', 'rope', 'rotate()');
          expectRefused(mh, attend({ qkNorm: {} }), 'E_OPTION', 'qkNorm', 'append()');
          const window = { left: 1, align: 'topLeft' };
          expectRefused(mh, attend({ window }), 'E_OPTION', 'window.align');
          expectRefused(mh, attend({ bias: filled(random(1), 1, 4) }), 'E_SHAPE', 'bias', '3', '4');
          expectRefused(mh, attend({ sinks: new Float32Array(3) }), 'E_SHAPE', 'sinks');
          expectRefused(mh, attend({ scale: NaN, return: ['weights'] }), 'E_OPTION', 'scale');
          expectRefused(mh, attend({ heads: 1 }), 'E_OPTION', 'heads', 'causal');
        }),
      );
    });
  });
});
