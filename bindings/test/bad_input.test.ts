// Bad arguments of attention(): the error names the option, the expected and the actual value; the call leaves nothing
// allocated, and the next call works.

import type { MultiheadErrorCode } from 'multihead';
import { describe, expect, it } from 'vitest';
import { attentionSchema } from '../src/attention/options.ts';
import { outputNames } from '../src/attention/outputs.ts';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random } from './random.ts';
import { filled, product } from './random_case.ts';

describe.each(builds)('options that attention refuses, %s', async (simd) => {
  const mh = await loadBuild(simd);

  const r = random(11);
  const q = filled(r, 2, 4, 6, 8);
  const k = filled(r, 2, 2, 9, 8);
  const v = filled(r, 2, 2, 9, 5);
  const anything = (value: unknown) => value as never;
  const int32 = (...values: number[]) => new Int32Array(values);
  const floats = (length: number) => new Float32Array(length);

  it.each<[string, object, MultiheadErrorCode, string, ...(string | RegExp)[]]>([
    ['a window below −1', { window: { left: -2 } }, 'E_OPTION', 'window.left', '-1', '-2'],
    ['a window below −1', { window: { right: -9 } }, 'E_OPTION', 'window.right', '-9'],
    ['half a token', { window: { left: 0.5 } }, 'E_OPTION', 'window.left', '0.5'],
    ['a number for a window', { window: 3 }, 'E_OPTION', 'window', 'left, right, align', '3'],
    ['an unknown part of a window', { window: { size: 3 } }, 'E_OPTION', 'size', 'left'],
    ['an unknown alignment', { window: { left: 1, align: 'top' } }, 'E_OPTION', 'window.align', 'top'],
    ['positions of no window', { window: { align: 'topLeft' } }, 'E_OPTION', 'window.align', 'left or right'],
    ['other positions than the causal ones', { causal: 'topLeft', window: { left: 1, align: 'bottomRight' } }, 'E_OPTION', 'window.align', 'causal'],
    ['another offset than the causal one', { causal: { offset: 1 }, window: { left: 1, align: { offset: 2 } } }, 'E_OPTION', 'window.align'],
    ['the end of lengths without lengths', { causal: 'bottomRightOfLength' }, 'E_OPTION', 'causal', 'kvLengths'],
    ['lengths over N_k', { kvLengths: int32(9, 10) }, 'E_OPTION', 'kvLengths', '9', '10'],
    ['lengths below 0', { kvLengths: int32(-1, 0) }, 'E_OPTION', 'kvLengths', '-1'],
    ['lengths for another batch', { kvLengths: int32(1) }, 'E_SHAPE', 'kvLengths', '2', '1'],
    ['no lengths', { kvLengths: int32() }, 'E_SHAPE', 'kvLengths', '2', '0'],
    ['number[] as lengths', { kvLengths: [1, 2] }, 'E_OPTION', 'kvLengths', 'Int32Array', 'number[]'],
    ['floats as lengths', { kvLengths: floats(2) }, 'E_OPTION', 'kvLengths', 'Int32Array'],
    ['slopes for other heads', { alibi: floats(3) }, 'E_SHAPE', 'alibi', '4', '3'],
    ['no slopes', { alibi: floats(0) }, 'E_SHAPE', 'alibi', '4'],
    ['a slope that is NaN', { alibi: floats(4).fill(NaN) }, 'E_OPTION', 'alibi', 'NaN'],
    ['a number for slopes', { alibi: 8 }, 'E_OPTION', 'alibi', 'Float32Array'],
    ['a softcap below 0', { softcap: -1 }, 'E_OPTION', 'softcap'],
    ['a softcap of NaN', { softcap: NaN }, 'E_OPTION', 'softcap', 'NaN'],
    ['an infinite softcap', { softcap: Infinity }, 'E_OPTION', 'softcap', 'got Infinity'],
    ['a softcap that is no number', { softcap: true }, 'E_OPTION', 'softcap', 'true'],
    ['sinks of the wrong count', { sinks: floats(2) }, 'E_SHAPE', 'sinks', '4', '2'],
    ['no sinks', { sinks: floats(0) }, 'E_SHAPE', 'sinks', '4'],
    ['a sink that is NaN', { sinks: floats(4).fill(NaN) }, 'E_OPTION', 'sinks', 'NaN'],
    ['number[] as sinks', { sinks: [0, 0, 0, 0] }, 'E_OPTION', 'sinks', 'number[]'],
    ['a NaN scale', { scale: NaN }, 'E_OPTION', 'scale', 'NaN'],
    ['true for QK-norm', { qkNorm: true }, 'E_OPTION', 'qkNorm', 'qGain, kGain, eps'],
    ['gains of another width', { qkNorm: { qGain: floats(7) } }, 'E_SHAPE', 'qkNorm.qGain', '8', '7'],
    ['no gains', { qkNorm: { kGain: floats(0) } }, 'E_SHAPE', 'qkNorm.kGain', '8'],
    ['a negative eps', { qkNorm: { eps: -1 } }, 'E_OPTION', 'qkNorm.eps'],
    ['RoPE without a style', { rope: {} }, 'E_OPTION', 'rope.style', 'interleaved', 'half'],
    ['an unknown style', { rope: { style: 'neox' } }, 'E_OPTION', 'rope.style', 'neox'],
    ['a base of 0', { rope: { style: 'half', base: 0 } }, 'E_OPTION', 'rope.base'],
    ['an odd width', { rope: { style: 'half', rotaryDim: 3 } }, 'E_OPTION', 'rope.rotaryDim', '3'],
    ['a width over d_k', { rope: { style: 'half', rotaryDim: 10 } }, 'E_OPTION', 'rope.rotaryDim', '8'],
    ['a width of 0', { rope: { style: 'half', rotaryDim: 0 } }, 'E_OPTION', 'rope.rotaryDim', '0'],
    ['a width of 2³²', { rope: { style: 'half', rotaryDim: 2 ** 32 } }, 'E_OPTION', 'rope.rotaryDim'],
    ['too few positions', { rope: { style: 'half', qPositions: int32(1, 2) } }, 'E_SHAPE', 'rope.qPositions', '6', '12', '2'],
    ['no positions', { rope: { style: 'half', kPositions: int32() } }, 'E_SHAPE', 'rope.kPositions'],
    ['number[] as positions', { rope: { style: 'half', kPositions: [1] } }, 'E_OPTION', 'rope.kPositions'],
    ['an unknown part of RoPE', { rope: { style: 'half', theta: 1e6 } }, 'E_OPTION', 'theta', 'base'],
    ['dropout of 1', { dropout: { probability: 1 } }, 'E_OPTION', 'dropout.probability', '0 <= p < 1'],
    ['an option of the C++ library alone', { precision: 'bf16' }, 'E_OPTION', 'precision', 'there is no'],
    ['dropout below 0', { dropout: { probability: -0.1 } }, 'E_OPTION', 'dropout.probability'],
    ['dropout of NaN', { dropout: { probability: NaN } }, 'E_OPTION', 'dropout.probability'],
    ['dropout without a probability', { dropout: { seed: 1 } }, 'E_OPTION', 'dropout.probability'],
    ['a number for dropout', { dropout: 0.1 }, 'E_OPTION', 'dropout', 'probability, seed'],
    ['a negative seed', { dropout: { probability: 0, seed: -1 } }, 'E_OPTION', 'dropout.seed', '-1'],
    ['half a seed', { dropout: { probability: 0, seed: 0.5 } }, 'E_OPTION', 'dropout.seed', 'whole'],
    ['a seed beyond 2⁵³', { dropout: { probability: 0, seed: 2 ** 60 } }, 'E_OPTION', 'dropout.seed', 'bigint'],
    ['a seed of 2⁶⁴', { dropout: { probability: 0, seed: 2n ** 64n } }, 'E_OPTION', 'dropout.seed'],
    ['a seed in words', { dropout: { probability: 0, seed: 'x' } }, 'E_OPTION', 'dropout.seed', 'x'],
    ['an unknown dtype', { outDtype: 'f64' }, 'E_OPTION', 'outDtype', 'f64', 'bf16'],
    ['a capture that is no list', { capture: { stage: 'raw' } }, 'E_OPTION', 'capture', 'array'],
    ['an unknown stage', { capture: [{ stage: 'scores' }] }, 'E_OPTION', 'capture[0].stage', 'weights'],
    ['no stage', { capture: [{ stage: 'raw' }, {}] }, 'E_OPTION', 'capture[1].stage', 'undefined'],
    ['no heads', { capture: [{ stage: 'raw', heads: [] }] }, 'E_OPTION', 'capture[0].heads', 'all'],
    ['a head too many', { capture: [{ stage: 'raw', heads: [4] }] }, 'E_OPTION', 'capture[0].heads', '3', '4'],
    ['a head twice', { capture: [{ stage: 'raw', heads: [1, 1] }] }, 'E_OPTION', 'capture[0].heads', 'once'],
    ['a negative head', { capture: [{ stage: 'raw', heads: [-1] }] }, 'E_OPTION', 'capture[0].heads'],
    ['rows that do not exist', { capture: [{ stage: 'raw', rows: [4, 3] }] }, 'E_OPTION', 'capture[0].rows', '6'],
    ['a number of rows', { capture: [{ stage: 'raw', rows: 3 }] }, 'E_OPTION', 'capture[0].rows', 'first, count'],
    ['an unknown part of a capture', { capture: [{ stage: 'raw', row: 1 }] }, 'E_OPTION', 'row', 'rows'],
  ])('%s', (_, options, code, argument, ...words) => {
    // Requests all kinds of outputs, so that a leak would show.
    const more = { return: ['lse', 'weights'], ...options };
    expectRefused(mh, () => mh.attention(q, k, v, anything(more)), code, argument, ...words);
  });

  it.each(Object.keys({ ...attentionSchema, ...outputNames }))('null for %s', (name) => {
    const error = expectRefused(mh, () => mh.attention(q, k, v, anything({ [name]: null })), 'E_OPTION', name);
    expect(error.got).toBe('null');
  });

  it('a mask of three axes, because the first could be B or H_q', () => {
    const mask = { shape: [4, 6, 9], data: new Uint8Array(216) };
    expectRefused(mh, () => mh.attention(q, k, v, { mask }), 'E_SHAPE', 'mask', 'B or H_q');
  });

  it('dtypes that do not go together', () => {
    const half = (...shape: number[]) => ({
      shape,
      data: new Uint16Array(product(shape)),
      dtype: 'f16' as const,
    });
    mh.scope(() => {
      const wanted = (options: object, argument: string, ...words: string[]) =>
        expectRefused(mh, () => mh.attention(q, k, v, anything(options)), 'E_OPTION', argument, ...words);
      wanted({ bias: half(6, 9) }, 'bias', 'Float32Array', 'f16');
      wanted({ mask: half(6, 9) }, 'mask', 'Uint8Array', 'f16');
      wanted({ mask: mh.zeros([6, 9]) }, 'mask', '"bool"', '"f32"');
      const halfV = { ...half(2, 2, 9, 5), shape: v.shape };
      expectRefused(mh, () => mh.attention(q, k, halfV), 'E_OPTION', 'v', 'a Float32Array', 'f16');
      const halfK = mh.zeros(k.shape, { dtype: 'f16' });
      expectRefused(mh, () => mh.attention(q, halfK, v), 'E_OPTION', 'v', 'with dtype "f16"');
      const v_ = mh.zeros(v.shape);
      expectRefused(mh, () => mh.attention(q, halfK, v_), 'E_OPTION', 'v', '"f16"', '"f32"');
      const out = mh.zeros([2, 4, 6, 5], { dtype: 'f16' });
      wanted({ out, outDtype: 'bf16' }, 'out', '"bf16"', '"f16"');
      wanted({ out: mh.zeros([2, 4, 6, 5]), outDtype: 'f16' }, 'out', '"f16"', '"f32"');
      wanted({ out: mh.zeros([2, 4, 6, 5], { dtype: 'bool' }) }, 'out', '"bool"');
    });
    const bits = { shape: q.shape, data: new Uint16Array(product(q.shape)) };
    const call = (given: unknown) => () => mh.attention(anything(given), k, v);
    expectRefused(mh, call(bits), 'E_OPTION', 'q', 'without a dtype', '"bf16"');
    expectRefused(mh, call({ ...bits, dtype: 'f32' }), 'E_OPTION', 'q', 'with dtype "f32"');
    expectRefused(mh, call({ ...q, dtype: 'f16' }), 'E_OPTION', 'q', 'Float32Array with dtype "f16"');
    const bools = mh.zeros(q.shape, { dtype: 'bool' });
    expectRefused(mh, call(bools), 'E_OPTION', 'q', '"bool"');
    bools.dispose();
  });

  it('an output that is an input, or of another shape', () => {
    mh.scope(() => {
      const tensor = mh.zeros([2, 4, 6, 5]);
      const square = mh.zeros([1, 1, 2, 2]);
      expectRefused(mh, () => mh.attention(square, square, square, { out: square }), 'E_OPTION', 'out');
      expectRefused(mh, () => mh.attention(q, k, k, { out: tensor }), 'E_SHAPE', 'out', '(2, 4, 6, 8)', '(2, 4, 6, 5)');
    });
  });

  it('more captured scores than the memory can hold', () => {
    const n = 32_767;
    const long = { shape: [1, 1, n, 1], data: new Float32Array(n) };
    const call = () => mh.attention(long, long, long, { capture: [{ stage: 'raw' }] });
    expectRefused(mh, call, 'E_MEMORY', 'capture[0]', String(4 * n * n), 'heap');
  });
});
