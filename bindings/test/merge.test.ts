import type { PartialAttention, Tensor } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, filled } from './random_case.ts';
import * as reference from './reference.ts';

/** Keys first to last − 1 of (B, H, N, d). */
function keysOf({ shape, data }: { shape: number[]; data: Float32Array }, first: number, last: number) {
  const [batch = 0, heads = 0, keys = 0, width = 0] = shape;
  const part = new Float32Array(batch * heads * (last - first) * width);
  for (let bh = 0; bh < batch * heads; bh += 1) {
    const rows = data.subarray((bh * keys + first) * width, (bh * keys + last) * width);
    part.set(rows, bh * (last - first) * width);
  }
  return { shape: [batch, heads, last - first, width], data: part };
}

describe.each(builds)('mergeAttention, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it(`merges parts into the whole result, in any order (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(40); round += 1) {
      const r = random(runSeed + round);
      const [n, m] = [r.int(1, 9), r.int(0, 60)];
      const q = filled(r, 2, 4, n, 8);
      const [k, v] = [filled(r, 2, 2, m, 8), filled(r, 2, 2, m, 5)];
      const sinks = r.next() < 0.5 ? r.floats(4) : undefined;
      const whole = reference.attention(q, k, v, { sinks, causal: 'topLeft' });
      const cuts = [0, r.int(0, m), r.int(0, m), m].sort((a, b) => a - b);
      mh.scope(() => {
        // Gives the sink to only one part. In a part that starts with key j, query i is at position i − j.
        const parts = [0, 1, 2].map((at) => {
          const [from = 0, to = 0] = cuts.slice(at);
          return mh.attention(q, keysOf(k, from, to), keysOf(v, from, to), {
            causal: { offset: -from },
            return: ['lse'],
            ...(sinks && at === 1 ? { sinks } : {}),
          });
        });
        if (r.next() < 0.5) parts.reverse();
        const [a, b, c] = parts as [(typeof parts)[0], (typeof parts)[0], (typeof parts)[0]];
        expect(mh.mergeAttention(a, b)).toBe(a);
        // A part that is only read may be a plain array.
        mh.mergeAttention(a, {
          out: { shape: c.out.shape, data: c.out.data.slice() },
          lse: { shape: c.lse.shape, data: c.lse.data.slice() },
        });
        const label = `seed ${runSeed + round}: ${n} queries, ${m} keys`;
        expect(reference.maxDifference(a.out.data, whole.out), label).toBeLessThan(2e-6);
        expect(reference.maxDifference(a.lse.data, whole.lse), label).toBeLessThan(4e-6);
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('refuses parts that cannot be written to, do not fit, or are the same tensor', async () => {
    const other = await loadBuild(simd);
    const plain = (...shape: number[]) => filled(random(1), ...shape);
    mh.scope(() => {
      const tensor = (...shape: number[]) => mh.zeros(shape);
      const a = { out: tensor(1, 2, 3, 4), lse: tensor(1, 2, 3) };
      const b = { out: plain(1, 2, 3, 4), lse: plain(1, 2, 3) };
      const call = (x: unknown, y: unknown) => () => mh.mergeAttention(x as PartialAttention<Tensor>, y as PartialAttention);
      expectRefused(mh, call(b, a), 'E_OPTION', 'a.out', 'same load()');
      expectRefused(mh, call({ out: a.out }, b), 'E_OPTION', 'a.lse', "'lse'");
      expectRefused(mh, call(a, { lse: b.lse }), 'E_OPTION', 'b.out');
      expectRefused(mh, call(a, [b]), 'E_OPTION', 'b');
      expectRefused(mh, call(a, { ...b, scale: 1 }), 'E_OPTION', 'scale');
      expectRefused(mh, call(a, a), 'E_OPTION', 'a.out', 'b.out');
      expectRefused(mh, call({ ...a, lse: a.out }, b), 'E_OPTION', 'a.lse', 'the same as a.out');
      expectRefused(mh, call(a, { ...b, out: plain(1, 2, 3, 5) }), 'E_SHAPE', 'b.out', '4', '5');
      expectRefused(mh, call(a, { ...b, lse: plain(1, 2, 4) }), 'E_SHAPE', 'b.lse', '3', '4');
      expectRefused(mh, call(a, { ...b, lse: plain(1, 2, 3, 1) }), 'E_SHAPE', 'b.lse', '(B, H_q, N_q)');
      const half = mh.zeros([1, 2, 3, 4], { dtype: 'f16' });
      expectRefused(mh, call({ ...a, out: half }, b), 'E_OPTION', 'a.out', '"f32"', '"f16"');
      expectRefused(mh, call(a, { ...b, out: half }), 'E_OPTION', 'b.out', '"f16"');
      using foreign = other.zeros([1, 2, 3, 4]);
      expectRefused(mh, call({ ...a, out: foreign }, b), 'E_OPTION', 'a.out', 'another');
      a.lse.dispose();
      expectRefused(mh, call(a, b), 'E_DISPOSED', 'a.lse');
    });
  });
});
