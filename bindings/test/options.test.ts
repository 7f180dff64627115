// Options are copied once, without additions to Object.prototype, and only up to a limit per call.

import { load } from 'multihead';
import { expect, it } from 'vitest';
import { expectRefused, expectWorks } from './builds.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';

const mh = await load();
const r = random(31);
const [q, k, v] = [filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8), filled(r, 1, 2, 5, 8)];

class OfAClass {
  get causal(): 'topLeft' {
    return 'topLeft';
  }
}

it.each<[string, unknown]>([
  ['causal', true],
  ['softcap', 3],
  ['right', 0],
  ['out', {}],
  ['signal', AbortSignal.abort()],
  ['simd', 'simd'],
  ['extra', 1],
])('%s, added to Object.prototype', async (name, value) => {
  const attend = (): unknown[] =>
    [undefined, {}, { window: { left: 2 } }, new OfAClass()].map((options) =>
      mh.scope(() => [...mh.attention(q, k, v, options).out.data]),
    );
  const expected = attend();
  const prototype = Object.prototype as unknown as Record<string, unknown>;
  prototype[name] = value;
  try {
    expect(attend()).toEqual(expected);
    expect(await load()).toBe(mh);
    expect(await load({})).toBe(mh);
  } finally {
    delete prototype[name];
  }
  expectWorks(mh);
});

/** An array that counts in `seen` how often an entry is read. */
function counted(length: number, entry: unknown, seen: { reads: number }): unknown[] {
  return new Proxy([], {
    get(_, name) {
      if (name === 'length') return length;
      seen.reads += 1;
      return entry;
    },
  });
}

it('refuses arrays in arrays that are too many in all, and copies no more than one call may have', () => {
  const seen = { reads: 0 };
  const inner = counted(60_000, 0, seen);
  const capture = Array.from({ length: 60_000 }, () => ({ stage: 'raw', heads: inner })) as never;
  const attend = (): unknown => mh.attention(q, k, v, { capture });
  expectRefused(mh, attend, 'E_OPTION', 'attention', '131072 entries and properties in all');
  expect(seen.reads).toBeGreaterThan(0);
  expect(seen.reads).toBeLessThan(2 ** 17);
  const claims = counted(2 ** 32 - 1, 0, seen) as never;
  expectRefused(mh, () => mh.attention(q, k, v, { capture: claims }), 'E_OPTION', 'attention', '4294967295');
});

it('refuses objects in objects that are too many in all', () => {
  const wide: Record<string, unknown> = Object.fromEntries(Array.from({ length: 50_000 }, (_, index) => [`x${index}`, 0]));
  const window = { ...wide, left: wide, right: wide, align: wide };
  expectRefused(mh, () => mh.attention(q, k, v, { window } as never), 'E_OPTION', 'attention', 'in all');
});

it('takes as many entries as one call may have', () => {
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

it('refuses a proxy that is its own prototype, or has ever new ones', async () => {
  let steps = 0;
  const itself: object = new Proxy({}, { getPrototypeOf: () => ((steps += 1), itself) });
  const endless = (): object => new Proxy({}, { getPrototypeOf: () => ((steps += 1), endless()) });
  for (const value of [itself, endless()]) {
    expectRefused(mh, () => mh.linear(value as never, q), 'E_OPTION', 'x', 'a tensor or');
    mh.scope(() => mh.attention(q, k, v, { window: value }));
    await expect(load({ wasm: value as never })).rejects.toMatchObject({ code: 'E_OPTION' });
  }
  expect(steps).toBeLessThan(5000);
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
