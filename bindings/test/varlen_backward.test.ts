// Compares gradients of packed sequences with the gradients of each sequence alone; and tests bad arguments.

import type { AttentionGradients, MaskOptions, VarlenBackwardOptions, VarlenGradientName } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, cumulative, filled, product, randomScoring, stored } from './random_case.ts';
import * as reference from './reference.ts';

describe.each(builds)('attentionVarlenBackward, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it(`gives the gradients of each sequence alone (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(60); round += 1) {
      const seed = runSeed + round;
      const r = random(seed);
      const numKvHeads = r.int(1, 2);
      const heads = numKvHeads * r.pick([1, 3]);
      const [width, valueDim] = [r.pick([2, 7, 16]), r.pick([1, 5, 16])];
      const sequences = r.int(1, 5);
      const [cuQ, cuK] = [cumulative(r, sequences), cumulative(r, sequences)];
      const [queries, keys] = [cuQ.at(-1) as number, cuK.at(-1) as number];
      const dtype = r.pick(['f32', 'f16', 'bf16'] as const);
      const tensor = (...shape: number[]) => stored(dtype, shape, r.floats(product(shape)));
      const q = tensor(queries, heads, width);
      const k = tensor(keys, numKvHeads, width);
      const v = tensor(keys, numKvHeads, valueDim);
      const dOut = filled(r, queries, heads, valueDim);
      const causal = r.pick([false, 'topLeft', 'bottomRight', { offset: 2 }] as const);
      const options = {
        causal,
        ...randomScoring(r, heads),
        ...(r.next() < 0.3 ? { rope: { style: 'half' as const, rotaryDim: 2 } } : {}),
        ...(r.next() < 0.3 ? { qkNorm: { eps: 0.1 } } : {}),
        ...(r.next() < 0.3 ? { dropout: { probability: 0.3, seed: BigInt(seed) } } : {}),
      } as Omit<VarlenBackwardOptions, 'cuQ' | 'cuK' | 'return' | 'out'>;
      const vectors: VarlenGradientName[] = [
        ...(options.sinks ? (['dSinks'] as const) : []),
        ...(options.qkNorm ? (['dQGain', 'dKGain'] as const) : []),
      ];
      const label = `seed ${seed}: ${JSON.stringify({ ...options, dropout: !!options.dropout, cuQ, cuK })}`;

      mh.scope(() => {
        const call = { ...options, cuQ, cuK };
        const forward = mh.attentionVarlen(q.given, k.given, v.given, { ...call, return: ['lse'] });
        const inputs = { q: q.given, k: k.given, v: v.given, ...forward, dOut };
        const names = ['dQ', 'dK', 'dV', ...vectors] as const;
        const got = mh.attentionVarlenBackward(inputs, { ...call, return: names }) as Partial<AttentionGradients> as AttentionGradients;
        const sums: Partial<Record<string, Float64Array>> = {};
        for (let s = 0; s < sequences; s += 1) {
          const [ofQ, ofK] = [cuQ, cuK].map((cu) => [cu[s] ?? 0, cu[s + 1] ?? 0] as const);
          if (ofQ === undefined || ofK === undefined) throw new Error('two lists');
          const part = (of: readonly [number, number], each: reference.Plain) => {
            const { shape, data } = reference.sequenceOf(each, ...of);
            return { shape, data: Float32Array.from(data) };
          };
          const own: MaskOptions = {
            ...options,
            ...(options.dropout && {
              dropout: { ...options.dropout, seed: BigInt(seed) + BigInt(s) * 2n ** 32n },
            }),
          };
          const [qs, ks, vs] = [part(ofQ, q.plain), part(ofK, k.plain), part(ofK, v.plain)];
          const alone = mh.attention(qs, ks, vs, { ...own, return: ['lse'] });
          const wanted = mh.attentionBackward(
            { q: qs, k: ks, v: vs, ...alone, dOut: part(ofQ, dOut) },
            { ...own, return: names },
          ) as Partial<AttentionGradients> as AttentionGradients;
          for (const [name, of] of [
            ['dQ', ofQ],
            ['dK', ofK],
            ['dV', ofK],
          ] as const) {
            const gradient = part(of, { shape: got[name].shape, data: got[name].data });
            const largest = wanted[name].data.reduce((most, x) => Math.max(most, Math.abs(x)), 1);
            const difference = reference.maxDifference(gradient.data, wanted[name].data);
            expect(difference, `${name} of sequence ${s}, ${label}`).toBeLessThan(2e-5 * largest);
          }
          for (const name of vectors) {
            const sum = (sums[name] ??= new Float64Array(wanted[name as 'dSinks'].length));
            wanted[name as 'dSinks'].forEach((x, i) => (sum[i] = (sum[i] ?? 0) + x));
          }
        }
        for (const name of vectors) {
          const sum = sums[name] ?? [];
          const largest = Math.max(1, ...sum.map(Math.abs));
          const difference = reference.maxDifference(got[name as 'dSinks'], sum);
          expect(difference, `${name}, ${label}`).toBeLessThan(1e-4 * largest);
        }
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  const r = random(43);
  const [q, k, v] = [filled(r, 7, 2, 8), filled(r, 9, 1, 8), filled(r, 9, 1, 5)];
  const dOut = filled(r, 7, 2, 5);
  const cuQ = new Int32Array([0, 3, 7]);
  const cuK = new Int32Array([0, 4, 9]);
  const packed = { cuQ, cuK };
  const results = () => mh.attentionVarlen(q, k, v, { ...packed, return: ['lse'] });

  it('computes what is asked for, into given tensors', () => {
    mh.scope(() => {
      const inputs = { q, k, v, ...results(), dOut };
      const all = mh.attentionVarlenBackward(inputs, packed);
      expect(Object.keys(all)).toEqual(['dQ', 'dK', 'dV']);
      expect([all.dQ.shape, all.dK.shape, all.dV.shape]).toEqual([q.shape, k.shape, v.shape]);
      const dK = mh.zeros(k.shape);
      const one = mh.attentionVarlenBackward(inputs, { ...packed, return: ['dK'], out: { dK } });
      expect(one.dK).toBe(dK);
      expect(Object.keys(one)).toEqual(['dK']);
      expect(dK.data).toEqual(all.dK.data);
    });
  });

  it.each([
    ['no cuK', { cuQ }, {}, 'E_OPTION', 'cuK'],
    ['another cuK', { cuQ, cuK: new Int32Array([0, 9, 8]) }, {}, 'E_OPTION', 'cuK'],
    ['a bias', { ...packed, bias: filled(r, 7, 9) }, {}, 'E_OPTION', 'bias'],
    ['the gradient of a bias', { ...packed, return: ['dBias'] }, {}, 'E_OPTION', 'dBias'],
    ['an outDtype', { ...packed, outDtype: 'bf16' }, {}, 'E_OPTION', 'outDtype'],
    ['the gradient of no sinks', { ...packed, return: ['dSinks'] }, {}, 'E_OPTION', 'dSinks'],
    ['no lse', packed, { lse: undefined }, 'E_OPTION', 'lse'],
    ['an lse of another shape', packed, { lse: filled(r, 7, 2) }, 'E_SHAPE', 'lse'],
    ['an lse of another call', packed, { lse: filled(r, 2, 7) }, 'E_OPTION', 'lse'],
    ['a dOut of another shape', packed, { dOut: filled(r, 7, 2, 8) }, 'E_SHAPE', 'dOut'],
    ['a q with a batch axis', packed, { q: filled(r, 1, 7, 2, 8) }, 'E_SHAPE', 'q'],
  ] as const)('refuses %s', (_, options, changed, code, argument) => {
    mh.scope(() => {
      const inputs = { q, k, v, ...results(), dOut, ...changed };
      const call = () => mh.attentionVarlenBackward(inputs as never, options as never);
      expectRefused(mh, call, code, argument);
    });
  });
});
