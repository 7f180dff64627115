import type { LatentAttentionInputs } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed, type Random } from './random.ts';
import { caseCount, filled, randomDropout, randomScoring, tolerance } from './random_case.ts';
import * as reference from './reference.ts';

interface Sizes {
  batch: number;
  heads: number;
  queries: number;
  keys: number;
  nope: number;
  rope: number;
  rank: number;
  value: number;
}

function inputsOf(r: Random, s: Sizes) {
  // Small weights keep keys and values as large as the other inputs.
  const weight = (...shape: number[]) => {
    const { data } = filled(r, ...shape);
    return { shape, data: data.map((x) => x / Math.sqrt(s.rank)) };
  };
  return {
    qNope: filled(r, s.batch, s.heads, s.queries, s.nope),
    qRope: filled(r, s.batch, s.heads, s.queries, s.rope),
    latent: filled(r, s.batch, s.keys, s.rank),
    kRope: filled(r, s.batch, s.keys, s.rope),
    wUk: weight(s.heads, s.nope, s.rank),
    wUv: weight(s.heads, s.value, s.rank),
  } satisfies LatentAttentionInputs;
}

/** q, k and v of every head, in float64. */
function expanded(inputs: ReturnType<typeof inputsOf>, s: Sizes) {
  const width = s.nope + s.rope;
  const q = new Float64Array(s.batch * s.heads * s.queries * width);
  const k = new Float64Array(s.batch * s.heads * s.keys * width);
  const v = new Float64Array(s.batch * s.heads * s.keys * s.value);
  for (let row = 0; row < s.batch * s.heads * s.queries; row += 1) {
    q.set(inputs.qNope.data.subarray(row * s.nope, (row + 1) * s.nope), row * width);
    q.set(inputs.qRope.data.subarray(row * s.rope, (row + 1) * s.rope), row * width + s.nope);
  }
  for (let bh = 0; bh < s.batch * s.heads; bh += 1) {
    const [b, h] = [Math.floor(bh / s.heads), bh % s.heads];
    const latent = {
      shape: [s.keys, s.rank],
      data: inputs.latent.data.subarray(b * s.keys * s.rank, (b + 1) * s.keys * s.rank),
    };
    const of = (weight: { data: Float32Array }, rows: number) =>
      reference.linear(latent, {
        shape: [rows, s.rank],
        data: weight.data.subarray(h * rows * s.rank, (h + 1) * rows * s.rank),
      });
    v.set(of(inputs.wUv, s.value), bh * s.keys * s.value);
    const nope = of(inputs.wUk, s.nope);
    for (let j = 0; j < s.keys; j += 1) {
      const at = (bh * s.keys + j) * width;
      k.set(nope.subarray(j * s.nope, (j + 1) * s.nope), at);
      const rope = (b * s.keys + j) * s.rope;
      k.set(inputs.kRope.data.subarray(rope, rope + s.rope), at + s.nope);
    }
  }
  return {
    q: { shape: [s.batch, s.heads, s.queries, width], data: q },
    k: { shape: [s.batch, s.heads, s.keys, width], data: k },
    v: { shape: [s.batch, s.heads, s.keys, s.value], data: v },
  };
}

describe.each(builds)('latentAttention, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it(`agrees with float64 in both forms (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(40); round += 1) {
      const r = random(runSeed + round);
      const s: Sizes = {
        batch: r.int(1, 2),
        heads: r.pick([1, 3, 4]),
        queries: r.pick([1, 1, 7, 20]),
        keys: r.pick([0, 5, 33]),
        nope: r.pick([4, 7, 16]),
        rope: r.pick([0, 2, 8]),
        rank: r.pick([3, 8, 40]),
        value: r.pick([1, 5, 16]),
      };
      const inputs = inputsOf(r, s);
      const masked = r.next() < 0.3;
      const options = {
        causal: r.pick([false, 'bottomRight', 'topLeft'] as const),
        ...randomScoring(r, s.heads),
        ...randomDropout(r),
        ...(masked ? { kvLengths: Int32Array.from({ length: s.batch }, () => r.int(0, s.keys)) } : {}),
        ...(r.next() < 0.3 ? { bias: filled(r, s.queries, s.keys) } : {}),
        ...(r.next() < 0.3 ? { window: { left: 4 } } : {}),
      };
      const { q, k, v } = expanded(inputs, s);
      const expected = reference.attention(q, k, v, options);
      // Sums over the rank add rounding errors to those over the head dim.
      const allowed = 4 * tolerance(s.nope + s.rope, options, expected);
      const label = `seed ${runSeed + round}: ${JSON.stringify({ ...s, ...options }, (_, x: unknown) => (typeof x === 'bigint' ? String(x) : x))}`;
      for (const form of ['expanded', 'absorbed'] as const) {
        mh.scope(() => {
          const call = { ...options, form, return: ['lse', 'weights'] as const };
          const { out, lse, weights } = mh.latentAttention(inputs, call);
          expect(out.shape, label).toEqual([s.batch, s.heads, s.queries, s.value]);
          const survivors = 1 - (options.dropout?.probability ?? 0);
          expect(reference.maxDifference(out.data, expected.out), `${form}, ${label}`).toBeLessThan(allowed / survivors);
          expect(reference.maxDifference(weights.data, expected.weights), label).toBeLessThan(allowed);
          expect(reference.maxDifference(lse.data, expected.lse), label).toBeLessThan(4 * allowed);
        });
      }
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  describe('refuses', () => {
    const sizes = { batch: 2, heads: 3, queries: 4, keys: 5, nope: 6, rope: 2, rank: 7, value: 8 };
    const inputs = inputsOf(random(1), sizes);
    const wrong = (name: string, ...shape: number[]) => [name, { [name]: filled(random(2), ...shape) }];

    it.each(
      [
        wrong('qNope', 3, 4, 6),
        wrong('qRope', 2, 3, 5, 2),
        wrong('latent', 1, 5, 7),
        wrong('kRope', 2, 5, 3),
        wrong('kRope', 2, 6, 2),
        wrong('wUk', 3, 6, 8),
        wrong('wUk', 2, 6, 7),
        wrong('wUv', 3, 8, 6),
        wrong('wUv', 8, 7),
      ].map(([name, changes]) => [name, changes] as [string, object]),
    )('a %s that does not fit', (name, changes) => {
      const call = () => mh.latentAttention({ ...inputs, ...changes }, { form: 'absorbed' });
      expectRefused(mh, call, 'E_SHAPE', name);
    });

    it.each<[object, 'E_OPTION' | 'E_SHAPE', string, ...string[]]>([
      [{ form: undefined }, 'E_OPTION', 'form', 'expanded', 'absorbed'],
      [{ form: 'naive' }, 'E_OPTION', 'form', 'naive'],
      [{ rope: { style: 'half' } }, 'E_OPTION', 'rope', 'rotate()'],
      [{ qkNorm: {} }, 'E_OPTION', 'qkNorm'],
      [{ capture: [] }, 'E_OPTION', 'capture'],
      [{ outDtype: 'f16' }, 'E_OPTION', 'outDtype'],
      [{ return: ['dropoutMask'] }, 'E_OPTION', 'return', 'dropoutMask'],
      [{ scale: NaN }, 'E_OPTION', 'scale'],
      [{ kvLengths: new Int32Array([6, 0]) }, 'E_OPTION', 'kvLengths', '5', '6'],
      [{ sinks: new Float32Array(2) }, 'E_SHAPE', 'sinks', '3'],
    ])('%j', (options, code, argument, ...words) => {
      const call = () => mh.latentAttention(inputs, { form: 'expanded', ...options } as never);
      expectRefused(mh, call, code, argument, ...words);
    });

    it('inputs that are missing, unknown or of another dtype', () => {
      const call = (changes: object) => () => mh.latentAttention({ ...inputs, ...changes } as never, { form: 'expanded' });
      expectRefused(mh, call({ wUv: undefined }), 'E_OPTION', 'wUv');
      expectRefused(mh, call({ wQ: inputs.wUk }), 'E_OPTION', 'wQ', 'wUk');
      const half = { shape: [2, 5, 7], data: new Uint16Array(70), dtype: 'bf16' };
      expectRefused(mh, call({ latent: half }), 'E_OPTION', 'latent', 'Float32Array');
      const out = mh.zeros([2, 3, 4, 8], { dtype: 'f16' });
      const into = () => mh.latentAttention(inputs, { form: 'absorbed', out: out as never });
      expectRefused(mh, into, 'E_OPTION', 'out', '"f32"', '"f16"');
      out.dispose();
    });
  });
});
