import type { MaskOptions, VarlenOptions } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, cumulative, filled, product, randomScoring, stored, tolerance } from './random_case.ts';
import * as reference from './reference.ts';

describe.each(builds)('attentionVarlen, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it(`agrees with each sequence alone (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(60); round += 1) {
      const r = random(runSeed + round);
      const numKvHeads = r.int(1, 2);
      const heads = numKvHeads * r.pick([1, 3]);
      const [width, valueDim] = [r.pick([2, 7, 16]), r.pick([1, 5, 16])];
      const sequences = r.int(1, 5);
      const [cuQ, cuK] = [cumulative(r, sequences), cumulative(r, sequences)];
      const dtype = r.pick(['f32', 'f16', 'bf16'] as const);
      const tensor = (...shape: number[]) => stored(dtype, shape, r.floats(product(shape)));
      const q = tensor(cuQ.at(-1) as number, heads, width);
      const k = tensor(cuK.at(-1) as number, numKvHeads, width);
      const v = tensor(cuK.at(-1) as number, numKvHeads, valueDim);
      const causal = r.pick([false, 'topLeft', 'bottomRight', { offset: 2 }] as const);
      const align = causal === false ? { align: 'bottomRight' as const } : {};
      const options: MaskOptions = {
        causal,
        ...randomScoring(r, heads),
        ...(r.next() < 0.4 ? { window: { left: r.int(0, 8), ...align } } : {}),
        ...(r.next() < 0.3 ? { rope: { style: r.pick(['half', 'interleaved']), rotaryDim: 2 } } : {}),
        ...(r.next() < 0.3 ? { qkNorm: {} } : {}),
      };
      const label = `seed ${runSeed + round}: ${JSON.stringify({ ...options, cuQ, cuK })}`;
      mh.scope(() => {
        const call = { ...(options as VarlenOptions), cuQ, cuK, return: ['lse'] as const };
        const { out, lse } = mh.attentionVarlen(q.given, k.given, v.given, call);
        expect(out.shape, label).toEqual([q.plain.shape[0], heads, valueDim]);
        expect(lse.shape, label).toEqual([heads, q.plain.shape[0]]);
        for (let s = 0; s < sequences; s += 1) {
          const [fromQ = 0, toQ = 0] = cuQ.subarray(s);
          const [fromK = 0, toK = 0] = cuK.subarray(s);
          const expected = reference.attention(
            reference.sequenceOf(q.plain, fromQ, toQ),
            reference.sequenceOf(k.plain, fromK, toK),
            reference.sequenceOf(v.plain, fromK, toK),
            options,
          );
          const allowed = tolerance(width, options, expected);
          const part = reference.sequenceOf({ shape: out.shape, data: out.data }, fromQ, toQ);
          expect(reference.maxDifference(part.data, expected.out), label).toBeLessThan(allowed);
          for (let h = 0; h < heads; h += 1) {
            const row = h * (q.plain.shape[0] as number);
            const got = lse.data.subarray(row + fromQ, row + toQ);
            const rows = toQ - fromQ;
            const wanted = expected.lse.subarray(h * rows, (h + 1) * rows);
            expect(reference.maxDifference(got, wanted), label).toBeLessThan(4 * allowed);
          }
        }
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  const r = random(41);
  const [q, k, v] = [filled(r, 7, 2, 8), filled(r, 9, 1, 8), filled(r, 9, 1, 5)];
  const cuQ = new Int32Array([0, 3, 7]);
  const cuK = new Int32Array([0, 9, 9]);

  it('applies dropout to sequence s with seed + s · 2³²', () => {
    mh.scope(() => {
      const [x, y] = [filled(r, 12, 2, 4), filled(r, 12, 2, 4)];
      const cu = new Int32Array([0, 5, 5, 12]);
      const seed = 2n ** 64n - 3n;
      const dropout = { probability: 0.5, seed };
      const { out } = mh.attentionVarlen(x, y, y, { cuQ: cu, cuK: cu, dropout });
      for (let s = 0; s < 3; s += 1) {
        const [first = 0, last = 0] = cu.subarray(s);
        const [q_, k_] = [x, y].map((each) => reference.sequenceOf(each, first, last));
        const own = { ...dropout, seed: BigInt.asUintN(64, seed + BigInt(s) * 2n ** 32n) };
        const part = reference.sequenceOf({ shape: out.shape, data: out.data }, first, last);
        const expected = reference.attention(q_ as typeof part, k_ as typeof part, k_ as typeof part, {
          dropout: own,
        });
        expect(reference.maxDifference(part.data, expected.out)).toBeLessThan(4e-6);
      }
    });
  });

  it('writes to `out` of any dtype, and accepts an empty list of sequences', () => {
    mh.scope(() => {
      const out = mh.zeros([7, 2, 5], { dtype: 'bf16' });
      const result = mh.attentionVarlen(q, k, v, { cuQ, cuK, out });
      expect(result.out).toBe(out);
      expect(result).not.toHaveProperty('lse');
      // The second sequence has no keys.
      expect(
        out
          .toFloat32()
          .subarray(30)
          .every((x) => x === 0),
      ).toBe(true);
      const none = new Int32Array([0]);
      const empty = (...shape: number[]) => ({ shape, data: new Float32Array(0) });
      const nothing = mh.attentionVarlen(empty(0, 2, 8), empty(0, 1, 8), empty(0, 1, 5), {
        cuQ: none,
        cuK: none,
      });
      expect(nothing.out.shape).toEqual([0, 2, 5]);
    });
  });

  describe('refuses', () => {
    const int32 = (...values: number[]) => new Int32Array(values);
    it.each<[string, object, 'E_OPTION' | 'E_SHAPE', string, ...string[]]>([
      ['lengths that do not begin at 0', { cuQ: int32(1, 3, 7) }, 'E_OPTION', 'cuQ', '0'],
      ['lengths that fall', { cuQ: int32(0, 5, 3, 7), cuK: int32(0, 1, 2, 9) }, 'E_OPTION', 'cuQ', 'fall'],
      ['lengths that end too early', { cuK: int32(0, 8, 8) }, 'E_OPTION', 'cuK', '9', '8'],
      ['lengths that end too late', { cuK: int32(0, 9, 10) }, 'E_OPTION', 'cuK', '9', '10'],
      ['lengths of no sequence', { cuQ: int32() }, 'E_OPTION', 'cuQ'],
      ['different numbers of sequences', { cuK: int32(0, 9) }, 'E_OPTION', 'cuK', '2', '1'],
      ['missing lengths', { cuK: undefined }, 'E_OPTION', 'cuK', 'Int32Array'],
      ['number[] as lengths', { cuQ: [0, 3, 7] }, 'E_OPTION', 'cuQ', 'number[]'],
      ['a mask', { mask: { shape: [7, 9], data: new Uint8Array(63) } }, 'E_OPTION', 'mask', 'batch axis'],
      ['a bias', { bias: { shape: [7, 9], data: new Float32Array(63) } }, 'E_OPTION', 'bias'],
      ['lengths of keys', { kvLengths: int32(9, 0) }, 'E_OPTION', 'kvLengths', 'cuK'],
      ['captures', { capture: [{ stage: 'raw' }] }, 'E_OPTION', 'capture'],
      ['weights', { return: ['weights'] }, 'E_OPTION', 'return', 'weights'],
      ['dropout masks', { return: ['dropoutMask'] }, 'E_OPTION', 'return', 'dropoutMask'],
      ['positions', { rope: { style: 'half', qPositions: int32(1) } }, 'E_OPTION', 'qPositions', 'rotate()'],
      ['a NaN scale', { scale: NaN }, 'E_OPTION', 'scale'],
      ['sinks of the wrong count', { sinks: new Float32Array(3) }, 'E_SHAPE', 'sinks'],
      ['the end of lengths', { causal: 'bottomRightOfLength' }, 'E_OPTION', 'causal'],
      ['an unknown option', { cu_seqlens: cuQ }, 'E_OPTION', 'cu_seqlens', 'cuQ, cuK'],
    ])('%s', (_, options, code, argument, ...words) => {
      const call = () => mh.attentionVarlen(q, k, v, { cuQ, cuK, return: ['lse'], ...options } as never);
      expectRefused(mh, call, code, argument, ...words);
    });

    it('shapes that do not fit', () => {
      const call = (a: typeof q, b: typeof k, c: typeof v) => () => mh.attentionVarlen(a, b, c, { cuQ, cuK });
      expectRefused(mh, call(filled(r, 1, 7, 2, 8), k, v), 'E_SHAPE', 'q', '(T_q, H_q, d_k)');
      expectRefused(mh, call(q, filled(r, 9, 1, 7), v), 'E_SHAPE', 'k');
      expectRefused(mh, call(q, k, filled(r, 8, 1, 5)), 'E_SHAPE', 'v');
      expectRefused(mh, call(q, filled(r, 9, 3, 8), filled(r, 9, 3, 5)), 'E_SHAPE', 'k');
    });
  });
});
