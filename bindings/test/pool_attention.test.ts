// Results of a pool are bit-identical to one thread, for every option and any number of workers.

import { load, type AttentionOptions, type Multihead } from 'multihead';
import { createPool, type Pool, type PoolOptions } from 'multihead/pool';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { builds, errorOf, loadBuild, rejectionOf } from './builds.ts';
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
      Object.values(expected as unknown as Results)
        .flat()
        .forEach((tensor) => tensor.dispose());
    }
  });

  test('calls that are divided by rows, and decoding with many keys', async () => {
    for (let seed = 1; seed <= caseCount(40); seed += 1) {
      const r = random(1000 + seed);
      const numKvHeads = r.int(1, 2);
      const heads = numKvHeads * r.pick([1, 2, 3]);
      const decoding = chance(r, 0.4);
      const [queries, keys] = decoding ? [r.int(1, 4), r.int(600, 2500)] : [r.int(60, 400), r.int(1, 700)];
      const [batch, width, valueDim] = [r.int(1, 2), r.pick([16, 33, 64]), r.pick([8, 64, 70])];
      const q = filled(r, batch, heads, queries, width);
      const k = filled(r, batch, numKvHeads, keys, width);
      const v = filled(r, batch, numKvHeads, keys, valueDim);
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
      Object.values(expected as unknown as Results)
        .flat()
        .forEach((tensor) => tensor.dispose());
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

type Arrays = Float32Array | Int32Array | Uint8Array;

describe.each(['auto', 'messages'] as const)('out in the memory of an operand, exchange: %s', (exchange) => {
  let pool: Pool;
  beforeAll(async () => {
    pool = await createPool({ workers: 2, leastWork: 1, exchange });
  });
  afterAll(() => pool.dispose());

  const r = random(11);
  const [q, k] = [filled(r, 1, 1, 200, 16), filled(r, 1, 1, 200, 16)];
  /** Makes arrays with unused bytes after them, in shared memory or not. */
  const memoryOf = (Memory: typeof SharedArrayBuffer | typeof ArrayBuffer) => {
    const buffer = new Memory(4 * 2 * 3200);
    new Float32Array(buffer).set(r.floats(6400));
    const at = (offset: number) => ({ shape: [1, 1, 200, 16], data: new Float32Array(buffer, 4 * offset, 3200) });
    return { buffer, at };
  };

  test.each([SharedArrayBuffer, ArrayBuffer])('is refused with the error of one thread, and nothing is written: %o', async (Memory) => {
    const mh = await load();
    const { buffer, at } = memoryOf(Memory);
    const tensor = mh.zeros([1, 1, 200, 16]);
    const parts = ({ code, argument, expected, got }: { code: string; argument: string; expected: string; got: string }) => [
      code,
      argument,
      expected,
      got,
    ];
    const given = { q, k, v: filled(r, 1, 1, 200, 16) };
    for (const name of ['q', 'k', 'v'] as const) {
      const [same, own] = [
        { ...given, [name]: tensor },
        { ...given, [name]: at(0) },
      ];
      const expected = errorOf(() => mh.attention(same.q, same.k, same.v, { out: tensor }));
      const before = at(0).data.slice();
      for (const offset of [0, 1, 3199]) {
        const error = await rejectionOf(pool.attention(own.q, own.k, own.v, { out: at(offset) }));
        expect(parts(error)).toEqual(parts(expected));
      }
      expect(at(0).data).toEqual(before);
      const { out } = mh.attention(own.q, own.k, own.v);
      const actual = await pool.attention(own.q, own.k, own.v, { out: at(3200) });
      expect(actual.out.data).toEqual(out.data);
      expect(actual.out.data.buffer).toBe(buffer);
      out.dispose();
    }
    tensor.dispose();
  });

  test('is refused for every array among the options', async () => {
    const { buffer, at } = memoryOf(SharedArrayBuffer);
    const bytes = new Uint8Array(buffer);
    const whole = new Int32Array(200);
    const of = <A extends Arrays>(from: A): A => {
      const Same = from.constructor as new (buffer: SharedArrayBuffer, offset: number, length: number) => A;
      const own = new Same(buffer as SharedArrayBuffer, 64, from.length);
      own.set(from as never);
      return own;
    };
    const options: [string, () => object][] = [
      ['mask', () => ({ mask: { shape: [1, 200], data: of(new Uint8Array(200).fill(1)) } })],
      ['bias', () => ({ bias: { shape: [1, 200], data: of(new Float32Array(200)) } })],
      ['sinks', () => ({ sinks: of(new Float32Array(1)) })],
      ['alibi', () => ({ alibi: of(new Float32Array(1)) })],
      ['kvLengths', () => ({ kvLengths: of(Int32Array.of(150)) })],
      ['qkNorm.qGain', () => ({ qkNorm: { qGain: of(new Float32Array(16).fill(1)) } })],
      ['rope.kPositions', () => ({ rope: { style: 'half', kPositions: of(whole) } })],
    ];
    for (const [name, chosen] of options) {
      const given = chosen();
      const before = bytes.slice();
      const error = await rejectionOf(pool.attention(q, k, k, { ...given, out: at(0) } as object));
      expect([error.code, error.argument, error.got]).toEqual(['E_OPTION', 'out', `the same as ${name}, or another shape of it`]);
      expect(bytes.slice()).toEqual(before);
      await pool.attention(q, k, k, { ...given, out: at(3200) } as object);
    }
  });
});

test('an out in shared memory takes no room in the buffers that carry results', async () => {
  const Original = globalThis.SharedArrayBuffer;
  const sizes: number[] = [];
  const shared = (shape: number[]) => {
    const { data } = filled(random(1), ...shape);
    const own = new Float32Array(new Original(data.byteLength));
    own.set(data);
    return { shape, data: own };
  };
  const [q, k, v] = [shared([1, 2, 900, 8]), shared([1, 2, 4, 8]), shared([1, 2, 4, 256])];
  const out = shared([1, 2, 900, 256]);
  const pool = await createPool({ workers: 2, leastWork: 1 } satisfies PoolOptions);
  globalThis.SharedArrayBuffer = new Proxy(Original, {
    construct(target, [size]: [number]) {
      sizes.push(size);
      return new target(size);
    },
  });
  try {
    await pool.attention(q, k, v, { out, return: ['lse'] });
  } finally {
    globalThis.SharedArrayBuffer = Original;
    pool.dispose();
  }
  // Each piece has 3600 bytes of lse, and the smallest buffer.
  expect(sizes).toEqual([2 ** 16, 2 ** 16]);
});
