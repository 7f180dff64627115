import type { ModuleCacheConfig, MultiHeadAttention, StepOptions } from 'multihead';
import { describe, expect, it } from 'vitest';
import { layouts } from './cache_model.ts';
import { builds, expectRefused, loadBuild } from './builds.ts';
import type { ModuleConfig } from './module_reference.ts';
import { random, runSeed, type Random } from './random.ts';
import { caseCount, chance, filled, product, randomBias, randomMask } from './random_case.ts';
import { described, parameters, randomModule, swapAxes } from './random_module.ts';
import { maxDifference } from './reference.ts';

interface Plain<A extends Float32Array | Uint8Array = Float32Array> {
  readonly shape: number[];
  readonly data: A;
}

/** Rows `first` to first + count − 1 along an axis. */
function slice<A extends Float32Array | Uint8Array>({ shape, data }: Plain<A>, axis: number, first: number, count: number): Plain<A> {
  const extent = shape[axis] as number;
  const inner = product(shape.slice(axis + 1));
  const outer = product(shape.slice(0, axis));
  const part = data.slice(0, outer * count * inner) as A;
  for (let at = 0; at < outer; at += 1) {
    const from = (at * extent + first) * inner;
    part.set(data.subarray(from, from + count * inner), at * count * inner);
  }
  return { shape: shape.map((each, index) => (index === axis ? count : each)), data: part };
}

/** Selects the part of scores (…, N, N) for n new tokens after `done` earlier ones: their rows, and the keys so far. */
function rowsSeen<A extends Float32Array | Uint8Array>(x: Plain<A>, done: number, n: number) {
  const rank = x.shape.length;
  return slice(slice(x, rank - 2, done, n), rank - 1, 0, done + n);
}

/** A random layout that the module supports, with capacity for this many tokens. */
function randomStorage(r: Random, config: ModuleConfig, batch: number, tokens: number): ModuleCacheConfig {
  const left = config.window?.left ?? -1;
  const layout = r.pick(layouts.filter((each) => each !== 'ring' || left >= 0));
  if (layout === 'ring') return { batch, layout, capacity: left + r.int(1, 6) };
  return {
    ...{ batch, layout, capacity: tokens + r.int(0, 3) },
    ...(layout === 'paged' && { pageSize: r.int(1, 5) }),
  };
}

/** Random options of step() for all tokens at once: each step takes its rows from full masks. */
function randomOptions(r: Random, { numHeads, headDim }: ModuleConfig, batch: number, tokens: number) {
  const mask = chance(r, 0.25) ? randomMask(r, [batch, 1, tokens, tokens]) : undefined;
  const bias = chance(r, 0.25) ? randomBias(r, [tokens, tokens]) : undefined;
  const options = {
    ...(chance(r, 0.2) && { scale: r.pick([0, -0.4, 0.7]) }),
    ...(chance(r, 0.2) && { softcap: 0.7 }),
    ...(chance(r, 0.2) && { alibi: chance(r, 0.5) || r.floats(numHeads) }),
    ...(chance(r, 0.2) && { sinks: r.floats(numHeads) }),
    ...(chance(r, 0.2) && { qkNorm: { kGain: r.floats(headDim), eps: 0.05 } }),
    ...(chance(r, 0.3) && {
      heads: {
        ...(chance(r, 0.5) && { scales: r.floats(numHeads).map((x) => (x < -0.5 ? 0 : x)) }),
        ...(chance(r, 0.3) && { skipOutProj: true }),
        ...(chance(r, 0.5) && { temperature: 2 }),
      },
    }),
  };
  return { mask, bias, options };
}

describe.each(builds)('the cache of a module, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it(`gives in steps what one causal pass gives (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(80); round += 1) {
      const r = random(runSeed + round);
      const { given, config, dict } = randomModule(r, true);
      const unbatched = chance(r, 0.15);
      const [batch, tokens] = [unbatched ? 1 : r.int(1, 3), r.int(1, 24)];
      const storage = randomStorage(r, config, batch, tokens);
      const { mask, bias, options } = randomOptions(r, config, batch, tokens);
      const x = filled(r, batch, tokens, config.embedDim);
      const label = `seed ${runSeed + round}: ${described(given)}, x (${x.shape}), ${described(storage)}, ${described(options)}, ${mask ? 'mask' : ''} ${bias ? 'bias' : ''}`;
      const laidOut = (part: Plain): Plain => {
        if (unbatched) return { shape: part.shape.slice(1), data: part.data };
        return config.batchFirst ? part : swapAxes(part);
      };
      const tokenAxis = unbatched || !config.batchFirst ? 0 : 1;
      mh.scope(() => {
        const module = mh.multiHeadAttention(given);
        module.loadStateDict(dict);
        const whole = module.forward(laidOut(x), {
          ...(options as object),
          ...({ causal: 'topLeft', mask, bias, return: ['weights', 'meanWeights'] } as const),
        });
        const expected = { shape: [...whole.output.shape], data: whole.output.data };
        const cache = module.createCache(storage);
        const twin = module.createCache(storage);
        const size = expected.data.reduce((most, y) => Math.max(most, Math.abs(y)), 1);

        /** Runs a step of n tokens, and compares it with the same rows of one pass. */
        const step = (n: number): void => {
          const done = cache.length();
          const where = `tokens ${done} to ${done + n - 1}, ${label}`;
          const stepOptions: StepOptions = {
            ...(options as object),
            ...(mask && { mask: rowsSeen(mask, done, n) }),
            ...(bias && { bias: rowsSeen(bias, done, n) }),
          };
          mh.scope(() => {
            const part = laidOut(slice(x, 1, done, n));
            const result = module.step(part, cache, {
              ...(stepOptions as object),
              ...({ return: ['weights', 'meanWeights'], trace: true } as const),
            });
            expect(cache.length(), label).toBe(done + n);
            const rows = slice(expected, tokenAxis, done, n);
            expect(result.output.shape).toEqual(rows.shape);
            expect(maxDifference(result.output.data, rows.data), where).toBeLessThan(2e-5 * size);
            for (const name of ['weights', 'meanWeights'] as const) {
              const wanted = rowsSeen({ shape: [...whole[name].shape], data: whole[name].data }, done, n);
              expect(result[name].shape, where).toEqual(wanted.shape);
              const off = maxDifference(result[name].data, wanted.data);
              expect(off, `${name}, ${where}`).toBeLessThan(2e-5);
            }
            expect(result.trace.weights.data, where).toEqual(result.weights.data);
            expect(laidOut(result.trace.output).data, where).toEqual(result.output.data);
            // Trace and weights do not change the output.
            const plain = module.step(part, twin, stepOptions);
            expect(plain.output.data, where).toEqual(result.output.data);
            expect(plain.trace).toBeUndefined();
          });
        };

        const ring = storage.layout === 'ring';
        const most = ring ? storage.capacity - (config.window?.left ?? 0) : tokens;
        const run = () => {
          while (cache.length() < tokens) step(r.int(1, Math.min(most, tokens - cache.length())));
        };
        run();
        // A ring has lost the overwritten tokens.
        const back = ring ? tokens : r.int(0, tokens);
        cache.truncate(back);
        twin.truncate(back);
        expect(cache.length(), label).toBe(back);
        run();
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it.each(['f16', 'bf16', 'int8'] as const)('stores keys and values in %s', (dtype) => {
    const r = random(2);
    mh.scope(() => {
      const module = mh.multiHeadAttention({ embedDim: 16, numHeads: 2 });
      module.loadStateDict(parameters(r, module.config));
      const x = filled(r, 1, 9, 16);
      const { output } = module.forward(x, { causal: 'topLeft' });
      const cache = module.createCache({ capacity: 16, dtype });
      const exact = module.createCache({ capacity: 16 });
      expect(cache).toMatchObject({ batch: 1, capacity: 16, layout: 'contiguous', dtype });
      expect(cache.bytes).toBeLessThan(exact.bytes);
      const steps = module.step(x, cache).output;
      const off = maxDifference(steps.data, output.data);
      expect(off).toBeGreaterThan(0);
      expect(off).toBeLessThan(dtype === 'f16' ? 2e-3 : 3e-2);
    });
  });

  it('is disposed like a tensor, and counted in the memory', () => {
    const before = mh.memory();
    const module = mh.multiHeadAttention({ embedDim: 16, numHeads: 2, numKvHeads: 1 });
    const cache = module.createCache({ batch: 2, capacity: 10 });
    // Keys and values, and two numbers per batch entry.
    expect(cache.bytes).toBe(2 * 10 * (8 + 8) * 4 + 2 * 8);
    expect(mh.memory()).toMatchObject({
      live: before.live + 2,
      bytes: before.bytes + cache.bytes,
    });
    module.loadStateDict(parameters(random(1), module.config));
    cache.dispose();
    cache.dispose();
    cache[Symbol.dispose]();
    expect(cache.disposed).toBe(true);
    const x = filled(random(1), 2, 1, 16);
    for (const fn of [() => module.step(x, cache), () => cache.length(), () => cache.truncate(0)]) {
      expectRefused(mh, fn, 'E_DISPOSED', 'cache');
    }
    module.dispose();
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
  });

  describe('refuses', () => {
    const small = (more: object = {}): MultiHeadAttention => {
      const module = mh.multiHeadAttention({ embedDim: 8, numHeads: 2, ...more });
      module.loadStateDict(parameters(random(3), module.config));
      return module;
    };
    const tokens = (n: number, batch = 1) => filled(random(4), batch, n, 8);
    /** Runs `fn` in a scope, which then disposes everything that it made. */
    const scoped = (fn: () => void) => () => mh.scope(fn);

    it(
      'the cache of another module, of another kind or load, and values that are no cache',
      scoped(() => {
        const [module, other] = [small(), small()];
        const cache = module.createCache({ capacity: 4 });
        const x = tokens(2);
        expectRefused(mh, () => other.step(x, cache), 'E_OPTION', 'cache', /another module/);
        const plain = mh.createCache({ numKvHeads: 2, headDim: 4, capacity: 4 });
        for (const wrong of [plain, {}, undefined, 4]) {
          const step = () => module.step(x, wrong as never);
          expectRefused(mh, step, 'E_OPTION', 'cache', /createCache\(\)/);
        }
        expect(cache.length()).toBe(0);
        module.step(x, cache);
        expect(cache.length()).toBe(2);
      }),
    );

    it('the cache of another load', async () => {
      const elsewhere = await loadBuild(simd);
      const foreign = elsewhere.multiHeadAttention({ embedDim: 8, numHeads: 2 });
      const cache = foreign.createCache({ capacity: 4 });
      const module = small();
      expectRefused(mh, () => module.step(tokens(1), cache), 'E_OPTION', 'cache', 'another load()');
      module.dispose();
      foreign.dispose();
      cache.dispose();
    });

    it(
      'steps past the capacity, and leaves the cache unchanged',
      scoped(() => {
        const module = small();
        const x = tokens(8);
        const expected = module.forward(x, { causal: 'topLeft' }).output;
        const cache = module.createCache({ capacity: 8 });
        module.step(slice(x, 1, 0, 5), cache);
        const past = () => module.step(tokens(4), cache, { trace: true, return: ['weights'] });
        expectRefused(mh, past, 'E_OPTION', 'x', 'at most 3', 'capacity 8', '4');
        expect(cache.length()).toBe(5);
        const rest = module.step(slice(x, 1, 5, 3), cache).output;
        const wanted = expected.data.subarray(5 * 8);
        expect(maxDifference(rest.data, wanted)).toBeLessThan(2e-6);
        expectRefused(mh, () => module.step(tokens(1), cache), 'E_OPTION', 'x', 'at most 0');
      }),
    );

    it(
      'to truncate to a length that it does not have',
      scoped(() => {
        const module = small({ window: { left: 2 } });
        const cache = module.createCache({ capacity: 8 });
        module.step(tokens(3), cache);
        expectRefused(mh, () => cache.truncate(4), 'E_OPTION', 'length', '0 to 3', '4');
        expectRefused(mh, () => cache.truncate(-1), 'E_OPTION', 'length', '-1');
        expectRefused(mh, () => cache.truncate(1.5), 'E_OPTION', 'length', 'whole number');
        for (const beyond of [2 ** 31, 2 ** 32, 2 ** 32 + 2, 2 ** 53]) {
          expectRefused(mh, () => cache.truncate(beyond), 'E_OPTION', 'length', String(beyond));
        }
        expect(cache.length()).toBe(3);
        const ring = module.createCache({ capacity: 3, layout: 'ring' });
        for (let n = 0; n < 5; n += 1) module.step(tokens(1), ring);
        expectRefused(mh, () => ring.truncate(1), 'E_OPTION', 'length', 'at least 2');
      }),
    );

    it.each<[string, object, string, object, string?]>([
      ['no capacity', {}, 'capacity', {}, 'whole number'],
      ['a batch of 0', {}, 'batch', { capacity: 4, batch: 0 }],
      ['an unknown layout', {}, 'layout', { capacity: 4, layout: 'linked' }, 'ring'],
      ['pages without paging', {}, 'pageSize', { capacity: 4, pageSize: 2 }, 'paged'],
      ['head dims, which the module knows', {}, 'headDim', { capacity: 4, headDim: 4 }, 'the module knows it'],
      ['a ring without a window', {}, 'capacity', { capacity: 4, layout: 'ring' }, 'window'],
      [
        ...(['a ring that is too small', { window: { left: 4 } }, 'capacity'] as const),
        ...([{ capacity: 4, layout: 'ring' }, 'window.left'] as const),
      ],
      ['appended keys', { addBiasKv: true }, 'addBiasKv', { capacity: 4 }],
      ['zero attention', { addZeroAttn: true }, 'addZeroAttn', { capacity: 4 }],
      ['keys of another width', { kdim: 6 }, 'kdim', { capacity: 4 }, 'self-attention'],
    ])('to be made with %s', (_, module, argument, config, word = '') => {
      mh.scope(() => {
        const made = small(module);
        const create = () => made.createCache(config as ModuleCacheConfig);
        expectRefused(mh, create, 'E_OPTION', argument, word);
      });
    });

    it('more than the available memory', () => {
      const module = small();
      const create = () => module.createCache({ capacity: 2 ** 30 });
      expectRefused(mh, create, 'E_MEMORY', 'memory', 'heap');
      module.dispose();
    });

    it.each<[string, object, string, string, ...string[]]>([
      ['causal', { causal: 'topLeft' }, 'E_OPTION', 'causal', 'a step is causal'],
      ['a window', { window: { left: 1 } }, 'E_OPTION', 'window', 'part of the module'],
      ['rope', { rope: { style: 'half' } }, 'E_OPTION', 'rope', 'positions go on'],
      ['lengths', { kvLengths: new Int32Array(1) }, 'E_OPTION', 'kvLengths', 'knows its length'],
      ['a blocked mask', { attnMaskBlocked: 1 }, 'E_OPTION', 'attnMaskBlocked', 'may attend'],
      ['a mask of the new tokens', { mask: { shape: [2, 2], data: new Uint8Array(4) } }, 'E_SHAPE', 'mask', '5'],
      ['no tensor as out', { out: 'x' }, 'E_OPTION', 'out'],
      ['unknown steps', { trace: ['keys'] }, 'E_OPTION', 'trace', 'kHeads'],
    ])('a step with %s', (_, options, code, argument, ...words) => {
      mh.scope(() => {
        const module = small();
        const cache = module.createCache({ capacity: 8 });
        module.step(tokens(3), cache);
        const step = () => module.step(tokens(2), cache, options);
        expectRefused(mh, step, code as 'E_SHAPE', argument, ...words);
        expect(cache.length()).toBe(3);
      });
    });

    it.each<[string, Plain, ...string[]]>([
      ['one axis', filled(random(1), 8), 'rank 3'],
      ['another width', filled(random(1), 2, 1, 7), '8', '7'],
      ['another batch', filled(random(1), 1, 1, 8), '(1, 1, 8)'],
      ['no batch', filled(random(1), 1, 8), '2 batch entries'],
    ])('a step of tokens with %s', (_, x, ...words) => {
      mh.scope(() => {
        const module = small();
        const cache = module.createCache({ capacity: 8, batch: 2 });
        expectRefused(mh, () => module.step(x, cache), 'E_SHAPE', 'x', ...words);
        expect(cache.length()).toBe(0);
      });
    });
  });
});
