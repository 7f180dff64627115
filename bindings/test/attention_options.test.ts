// Tests every option alone, with small examples whose results can be checked by hand.

import type { AttentionOptions, TensorLike } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { round } from './half_reference.ts';
import { random } from './random.ts';
import { filled, stored } from './random_case.ts';
import * as reference from './reference.ts';

describe.each(builds)('options of attention, %s', async (simd) => {
  const mh = await loadBuild(simd);

  const r = random(11);
  const q = filled(r, 2, 4, 6, 8);
  const k = filled(r, 2, 2, 9, 8);
  const v = filled(r, 2, 2, 9, 5);

  /** Formats the weights of the first head of the last batch entry, row by row: "1" for a weight above 0. */
  function seen(n: number, m: number, options: Omit<AttentionOptions, 'return'>, batch = 1): string {
    return mh.scope(() => {
      const zeros = (rows: number) => ({
        shape: [batch, 1, rows, 1],
        data: new Float32Array(batch * rows),
      });
      const { weights } = mh.attention(zeros(n), zeros(m), zeros(m), {
        ...options,
        return: ['weights'],
      });
      const last = weights.data.subarray((batch - 1) * n * m);
      return Array.from(last, (w, at) => (at > 0 && at % m === 0 ? ' ' : '') + (w > 0 ? '1' : '0')).join('');
    });
  }

  it.each<[string, Omit<AttentionOptions, 'return'>, number, number, string]>([
    ['a window to both sides', { window: { left: 1, right: 1 } }, 4, 4, '1100 1110 0111 0011'],
    ['only the token itself', { window: { left: 0, right: 0 } }, 3, 3, '100 010 001'],
    ['an open right side', { window: { left: 0 } }, 3, 3, '111 011 001'],
    ['an open left side', { window: { right: 0, left: -1 } }, 3, 3, '100 110 111'],
    ['two open sides', { window: { left: -1, right: -1 } }, 2, 2, '11 11'],
    ['nothing given', { window: {} }, 2, 2, '11 11'],
    ['positions at the end', { window: { left: 1, right: 0, align: 'bottomRight' } }, 2, 4, '0110 0011'],
    ['positions at an offset', { window: { left: 0, right: 0, align: { offset: -1 } } }, 3, 3, '000 100 010'],
    ['the positions of a causal call, stated again', { causal: { offset: 2 }, window: { left: 1, align: { offset: 2 } } }, 2, 4, '0110 0011'],
    ['the positions of a causal call', { causal: 'bottomRight', window: { left: 1 } }, 2, 4, '0110 0011'],
    ['a far offset', { causal: { offset: 1000 }, window: { left: 995 } }, 1, 8, '00000111'],
    ['a far window', { window: { left: 2 ** 40, right: 2 ** 50 } }, 2, 2, '11 11'],
  ])('a window with %s', (_, options, n, m, rows) => {
    expect(seen(n, m, options)).toBe(rows);
  });

  it.each<[string, Omit<AttentionOptions, 'return'>, string]>([
    ['alone', {}, '1110 1110'],
    ['with top-left causal order', { causal: 'topLeft' }, '1000 1100'],
    ['with bottom-right causal order', { causal: 'bottomRight' }, '1110 1110'],
    ['with causal order at its end', { causal: 'bottomRightOfLength' }, '1100 1110'],
    ['with a window at its end', { window: { left: 0, align: 'bottomRightOfLength' } }, '0110 0010'],
  ])('lengths %s', (_, options, rows) => {
    const kvLengths = new Int32Array([4, 3]);
    expect(seen(2, 4, { ...options, kvLengths }, 2)).toBe(rows);
  });

  it('a length of 0 sees nothing', () => {
    mh.scope(() => {
      const { out, lse } = mh.attention(q, k, v, {
        kvLengths: new Int32Array([9, 0]),
        return: ['lse'],
      });
      expect(out.data.subarray(out.size / 2).every((x) => x === 0)).toBe(true);
      expect(lse.data.subarray(lse.size / 2).every((x) => x === -Infinity)).toBe(true);
    });
  });

  it('keys and values beyond the lengths are not read', () => {
    const [bad, worse] = [filled(random(1), 2, 2, 9, 8), filled(random(2), 2, 2, 9, 5)];
    const kvLengths = new Int32Array([5, 9]);
    const expected = reference.attention(q, bad, worse, { kvLengths });
    for (const [tensor, width] of [
      [bad, 8],
      [worse, 5],
    ] as const) {
      for (const head of [0, 1]) tensor.data.fill(NaN, (head * 9 + 5) * width, (head + 1) * 9 * width);
    }
    mh.scope(() => {
      const { out } = mh.attention(q, bad, worse, { kvLengths });
      expect(reference.maxDifference(out.data, expected.out)).toBeLessThan(2e-6);
    });
  });

  it('ALiBi has the slopes of the paper, or those given', () => {
    expect(mh.alibiSlopes(4)).toEqual(new Float32Array([1 / 4, 1 / 16, 1 / 64, 1 / 256]));
    for (const heads of [1, 2, 6, 8, 12, 20]) {
      expect(mh.alibiSlopes(heads)).toEqual(Float32Array.from(reference.alibiSlopes(heads)));
    }
    mh.scope(() => {
      const paper = mh.attention(q, k, v, { alibi: true }).out.data;
      expect(mh.attention(q, k, v, { alibi: mh.alibiSlopes(4) }).out.data).toEqual(paper);
      expect(mh.attention(q, k, v, { alibi: false }).out.data).toEqual(mh.attention(q, k, v).out.data);
    });
  });

  it('a sink takes part of the weight, and is the log-sum-exp of a query that sees no key', () => {
    const zeros = { shape: [1, 1, 2, 1], data: new Float32Array(2) };
    const mask = { shape: [2, 2], data: new Uint8Array([1, 1, 0, 0]) };
    mh.scope(() => {
      const { out, lse, weights } = mh.attention(zeros, zeros, zeros, {
        mask,
        sinks: new Float32Array([Math.log(2)]),
        return: ['lse', 'weights'],
      });
      expect([...weights.data]).toEqual([expect.closeTo(0.25, 6), expect.closeTo(0.25, 6), 0, 0]);
      expect(lse.data[0]).toBeCloseTo(Math.log(4), 6);
      expect(lse.data[1]).toBeCloseTo(Math.log(2), 6);
      expect(out.data[1]).toBe(0);
    });
  });

  describe('of each dtype', () => {
    it.each(['f16', 'bf16'] as const)('%s, as tensors and as typed arrays', (dtype) => {
      const [hq, hk, hv] = [q, k, v].map(({ shape, data }) => stored(dtype, shape, data)) as [
        ReturnType<typeof stored>,
        ReturnType<typeof stored>,
        ReturnType<typeof stored>,
      ];
      const expected = reference.attention(hq.plain, hk.plain, hv.plain);
      mh.scope(() => {
        const tensors = [q, k, v].map(({ shape, data }) => mh.tensor(data, shape, { dtype })) as [
          TensorLike<'f16'>,
          TensorLike<'f16'>,
          TensorLike<'f16'>,
        ];
        const { out } = mh.attention(...tensors);
        expect(out.dtype).toBe('f32');
        expect(reference.maxDifference(out.data, expected.out)).toBeLessThan(2e-6);
        expect(mh.attention(hq.given, hk.given, hv.given).out.data).toEqual(out.data);

        const half = mh.attention(...tensors, { outDtype: dtype }).out;
        expect(half.dtype).toBe(dtype);
        expect(half.data).toBeInstanceOf(Uint16Array);
        expect([...half.toFloat32()]).toEqual(Array.from(out.data, (x) => round(x, dtype)));

        const reused = mh.zeros(out.shape, { dtype });
        expect(mh.attention(...tensors, { out: reused }).out).toBe(reused);
        expect(reused.data).toEqual(half.data);
      });
    });
  });

  describe('captures', () => {
    it('come in the requested order, and so do their heads', () => {
      const expected = reference.attention(q, k, v, { causal: 'topLeft', softcap: 0.3 });
      mh.scope(() => {
        const { captures } = mh.attention(q, k, v, {
          causal: 'topLeft',
          softcap: 0.3,
          capture: [{ stage: 'capped', heads: [3, 0], rows: [2, 3] }, { stage: 'masked' }, { stage: 'raw', rows: [6, 0] }],
        });
        const [capped, masked, none] = captures;
        expect(capped.shape).toEqual([2, 2, 3, 9]);
        expect(masked.shape).toEqual([2, 4, 6, 9]);
        expect(none.shape).toEqual([2, 4, 0, 9]);
        const head3 = expected.capped.subarray((3 * 6 + 2) * 9, (3 * 6 + 5) * 9);
        expect(reference.maxDifference(capped.data.subarray(0, 27), head3)).toBeLessThan(2e-6);
        expect(reference.maxDifference(masked.data, expected.masked)).toBeLessThan(2e-6);
      });
    });

    it('are kept by a scope with the result, and absent unless requested', () => {
      const before = mh.memory().live;
      const result = mh.scope(() => mh.attention(q, k, v, { capture: [{ stage: 'weights' }] }));
      expect(mh.memory().live).toBe(before + 2);
      expect(result.captures[0].disposed).toBe(false);
      for (const tensor of [result.out, ...result.captures]) tensor.dispose();
      mh.scope(() => expect(mh.attention(q, k, v)).not.toHaveProperty('captures'));
      expect(mh.memory().live).toBe(before);
    });

    it('of a refused call do not appear in the next result', () => {
      const capture = [{ stage: 'raw' as const }];
      expectRefused(mh, () => mh.attention(q, k, v, { capture, scale: NaN }), 'E_OPTION', 'scale');
      mh.scope(() => expect(mh.attention(q, k, v)).not.toHaveProperty('captures'));
    });
  });
});
