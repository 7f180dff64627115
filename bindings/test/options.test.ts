// Options may be of a class, and name as many heads as there are.

import { load } from 'multihead';
import { expect, it } from 'vitest';
import { expectRefused } from './builds.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

const mh = await load();
const r = random(31);
const [q, k, v] = [filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8)];

it('refuses many heads that are the same', () => {
  const heads = Array.from({ length: 2 ** 16 }, () => 0);
  expectRefused(mh, () => mh.attention(q, k, v, { capture: [{ stage: 'raw', heads }] }), 'E_OPTION', 'capture[0].heads', '0 twice');
  mh.scope(() => {
    const { captures } = mh.attention(q, k, v, { capture: [{ stage: 'raw', heads: [1, 0], rows: [1, 2] }] });
    expect(captures[0].shape).toEqual([1, 2, 2, 5]);
  });
});

it('lists no heads of a capture of all heads, which may be 2³¹ − 1 without a batch', () => {
  const none = { shape: [0, 2 ** 31 - 1, 1, 1], data: new Float32Array() };
  mh.scope(() => {
    const { captures } = mh.attention(none, none, none, { capture: [{ stage: 'raw' }] });
    expect(captures[0].shape).toEqual([0, 2 ** 31 - 1, 1, 1]);
  });
});

/** An object of a class whose properties are getters of the prototype, as are those of the objects in it. */
function ofClass(options: object): object {
  class Options {}
  for (const [name, value] of Object.entries(options)) {
    const isPlain = Object.getPrototypeOf(value) === Object.prototype;
    Object.defineProperty(Options.prototype, name, { get: () => (isPlain ? ofClass(value) : value) });
  }
  return new Options();
}

it.each<[string, object]>([
  ['window', { left: 2, right: 0, align: { offset: 1 } }],
  ['causal', { offset: 1 }],
  ['dropout', { probability: 0.5, seed: 7 }],
  ['qkNorm', { qGain: new Float32Array(8).fill(2), kGain: new Float32Array(8).fill(3), eps: 0.5 }],
  ['rope', { style: 'half', base: 100, rotaryDim: 4, qPositions: Int32Array.of(4, 5, 6, 7, 8), kPositions: Int32Array.of(0, 1, 2, 3, 9) }],
  ['mask', { data: new Uint8Array(25).fill(1, 3, 20), shape: [5, 5], dtype: 'bool' }],
  ['bias', { data: new Float32Array(25).fill(1, 3, 20), shape: [5, 5], dtype: 'f32' }],
])('reads every property of %s from a prototype', (name, value) => {
  const attend = (options: object): unknown => mh.scope(() => [...mh.attention(q, k, v, options).out.data]);
  const expected = attend({ [name]: value });
  expect(expected).not.toEqual(attend({}));
  expect(attend(ofClass({ [name]: value }))).toEqual(expected);
});
