// `causal: true`: the same bits as 'topLeft' and 'bottomRight' where there are as many queries as keys, else an error.

import { type AttentionBackwardInputs, type Multihead, type Tensor } from 'multihead';
import { createPool } from 'multihead/pool';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild, rejectionOf } from './builds.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

const r = random(77);
const plain = (...shape: number[]) => filled(r, ...shape);
const [q, k, v] = [plain(2, 4, 6, 8), plain(2, 2, 6, 8), plain(2, 2, 6, 5)];
const [longK, longV] = [plain(2, 2, 7, 8), plain(2, 2, 7, 5)];
const [tokens, packedK, packedV] = [plain(9, 4, 8), plain(9, 2, 8), plain(9, 2, 5)];
const cu = Int32Array.of(0, 2, 2, 9);
const shifted = Int32Array.of(0, 3, 3, 9);
const alignments = ['topLeft', 'bottomRight'] as const;

describe.each(builds)('causal: true, %s', async (simd) => {
  const mh = await loadBuild(simd);
  const bits = (make: () => Record<string, unknown>): unknown =>
    mh.scope(() => Object.entries(make()).map(([name, each]) => [name, (each as Tensor).toFloat32()]));

  it.each(alignments)('attention, with the bits of %s', (causal) => {
    const attend = (options: object) => bits(() => mh.attention(q, k, v, { ...options, return: ['lse', 'weights'] }));
    expect(attend({ causal: true })).toEqual(attend({ causal }));
    expect(attend({ causal: true })).not.toEqual(attend({}));
    const window = { left: 2, align: causal };
    expect(attend({ causal: true, window })).toEqual(attend({ causal, window }));
    const [stage] = [...mh.scores(q, k, { stage: 'masked', causal: true })].map(({ data }) => data);
    const [expected] = [...mh.scores(q, k, { stage: 'masked', causal })].map(({ data }) => data);
    expect(stage).toEqual(expected);
  });

  it('gradients, prepared calls and packed sequences', () => {
    const inputs = (causal: true | 'topLeft'): AttentionBackwardInputs => {
      const { out, lse } = mh.attention(q, k, v, { causal, return: ['lse'] });
      return { q, k, v, out, lse, dOut: plainOut };
    };
    const plainOut = plain(2, 4, 6, 5);
    const backward = (causal: true | 'topLeft') => bits(() => mh.attentionBackward(inputs(causal), { causal }));
    expect(backward(true)).toEqual(backward('topLeft'));

    const prepared = (causal: true | 'topLeft') =>
      bits(() => {
        const op = mh.prepare({ q: q.shape, numKvHeads: 2, valueDim: 5, causal });
        const out = mh.zeros(op.shapes.out);
        op.run(mh.tensor(q.data, q.shape), mh.tensor(k.data, k.shape), mh.tensor(v.data, v.shape), out);
        return { out };
      });
    expect(prepared(true)).toEqual(prepared('topLeft'));

    const varlen = (causal: true | 'topLeft') =>
      bits(() => {
        const { out, lse } = mh.attentionVarlen(tokens, packedK, packedV, { cuQ: cu, cuK: cu, causal, return: ['lse'] });
        const packed = { q: tokens, k: packedK, v: packedV, out, lse, dOut: packedOut };
        return { out, ...mh.attentionVarlenBackward(packed, { cuQ: cu, cuK: cu, causal }) };
      });
    const packedOut = plain(9, 4, 5);
    expect(varlen(true)).toEqual(varlen('topLeft'));
  });

  it('modules and caches', () => {
    const dict = { in_proj_weight: plain(24, 8), 'out_proj.weight': plain(8, 8) };
    const x = plain(2, 5, 8);
    using module = mh.multiHeadAttention({ embedDim: 8, numHeads: 2, bias: false });
    module.loadStateDict(dict);
    const forward = (causal: true | 'topLeft') => bits(() => ({ output: module.forward(x, { causal }).output }));
    expect(forward(true)).toEqual(forward('topLeft'));
    const memory = { query: x, key: plain(2, 4, 8) };
    expectRefused(mh, () => module.forward(memory, { causal: true }), 'E_OPTION', 'causal', 'bottomRight');

    using cache = mh.createCache({ batch: 2, numKvHeads: 2, headDim: 8, valueDim: 5, capacity: 8 });
    cache.append(k, v);
    const attend = (causal: true | 'bottomRight') => bits(() => ({ out: cache.attend(q, { causal }).out }));
    expect(attend(true)).toEqual(attend('bottomRight'));
    cache.truncate(5, 1);
    expectRefused(mh, () => cache.attend(q, { causal: true }), 'E_OPTION', 'causal', 'bottomRight');
  });

  it('is an error if the numbers differ', () => {
    const refused = (call: (mh: Multihead) => unknown): void =>
      void expectRefused(mh, () => call(mh), 'E_OPTION', 'causal', /'topLeft'.*'bottomRight'/);
    refused(() => mh.attention(q, longK, longV, { causal: true }));
    refused(() => mh.scores(q, longK, { stage: 'raw', causal: true }).next());
    refused(() => mh.prepare({ q: q.shape, keys: 7, causal: true }));
    refused(() => mh.prepareBackward({ q: q.shape, keys: 7, causal: true }));
    // As many tokens in all, but not in each sequence.
    refused(() => mh.attentionVarlen(tokens, packedK, packedV, { cuQ: cu, cuK: shifted, causal: true }));
  });
});

it('causal: true, in a pool', async () => {
  const mh = await loadBuild('simd128');
  using pool = await createPool({ workers: 2, leastWork: 1, simd: 'simd128' });
  const expected = mh.scope(() => mh.attention(q, k, v, { causal: 'topLeft' }).out.toFloat32());
  expect((await pool.attention(q, k, v, { causal: true })).out.data).toEqual(expected);
  const packed = { cuQ: cu, cuK: cu, causal: true } as const;
  const sequences = mh.scope(() => mh.attentionVarlen(tokens, packedK, packedV, packed).out.toFloat32());
  expect((await pool.attentionVarlen(tokens, packedK, packedV, packed)).out.data).toEqual(sequences);
  for (const call of [
    pool.attention(q, longK, longV, { causal: true }),
    pool.attentionVarlen(tokens, packedK, packedV, { ...packed, cuK: shifted }),
  ]) {
    expect(await rejectionOf(call)).toMatchObject({ code: 'E_OPTION', argument: 'causal' });
  }
});
