// After a WebAssembly trap: calls throw E_FATAL, dispose() and the garbage collector do nothing, load() makes a new
// instance.

import type { Multihead } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, expectWorks, freshLoad, openBuild } from './builds.ts';

/** Overwrites the whole memory, so that the next call of the core traps. */
function destroy(mh: Multihead): void {
  const { data } = mh.zeros([1]);
  new Uint8Array(data.buffer).fill(0xff);
}

const x = { shape: [1, 1, 2, 4], data: new Float32Array(8) };

describe.each(builds)('after a trap, %s', (simd) => {
  it('every call throws E_FATAL, and dispose() does nothing', async () => {
    const { mh } = await openBuild(simd);
    const tensor = mh.tensor(x.data, [1, 1, 2, 4]);
    const cache = mh.createCache({ numKvHeads: 1, headDim: 4, capacity: 8 });
    const layer = mh.multiHeadAttention({ embedDim: 4, numHeads: 1 });
    const op = mh.prepare({ q: [1, 1, 2, 4] });
    const scoped = (): void => mh.scope(() => void mh.zeros([4]));
    destroy(mh);
    const first = errorOf(() => cache.length());
    expect(first).toMatchObject({ code: 'E_FATAL', argument: 'multihead' });
    expect(first.cause).toBeInstanceOf(WebAssembly.RuntimeError);
    expect(first.message).toMatch(/dead.*memory access.*load\(\) gives a new instance/s);
    for (const call of [
      () => cache.length(),
      () => cache.append(x, x),
      () => cache.clear(),
      () => mh.zeros([0]),
      () => mh.zeros([2]),
      () => tensor.reshape([8]),
      () => mh.attention(tensor, tensor, tensor),
      () => mh.prepare({ q: [1, 1, 2, 4] }),
      () => mh.multiHeadAttention({ embedDim: 4, numHeads: 1 }),
      () => layer.createCache({ capacity: 4 }),
      () => layer.stateDict(),
      () => mh.alibiSlopes(4),
      () => mh.scores(x, x, { stage: 'raw' }).next(),
      () => op.run(tensor, tensor, tensor, tensor),
      scoped,
    ]) {
      expect(errorOf(call).code).toBe('E_FATAL');
    }
    for (const each of [tensor, cache, layer, op]) each.dispose();
    expect(tensor.disposed).toBe(true);
    expect(mh.memory().live).toBe(1); // the tensor of destroy()
  });
});

describe('load() after a trap', () => {
  it('makes a new instance, and the old one stays dead', async () => {
    const load = await freshLoad('dead');
    const mh = await load();
    expect(await load()).toBe(mh);
    const cache = mh.createCache({ numKvHeads: 1, headDim: 4, capacity: 8 });
    destroy(mh);
    expect(errorOf(() => cache.length()).code).toBe('E_FATAL');
    const next = await load();
    expect(next).not.toBe(mh);
    expect(await load()).toBe(next);
    expectWorks(next);
    expect(errorOf(() => mh.zeros([1])).code).toBe('E_FATAL');
  });
});

describe('the block of arguments', () => {
  it.each([
    ['one number too few', -1],
    ['one number too many', 1],
    ['a number that is not finite', NaN],
    ['more than there is room for', 1e6],
  ])('with %s, a call is refused and writes nothing', async (_, wrong) => {
    let block: Float64Array | undefined;
    const { mh } = await openBuild('simd128', (raw) => {
      const attention = raw._multihead_attention.bind(raw);
      raw._multihead_attention = () => {
        block = new Float64Array(raw.HEAPU8.buffer, raw.argumentBlock(), 256);
        block[0] = (block[0] ?? 0) + wrong;
        return attention();
      };
      return raw;
    });
    const out = mh.zeros(x.shape);
    const before = mh.memory();
    const error = errorOf(() => mh.attention(x, x, x, { out, scale: 0.5 }));
    expect(error).toMatchObject({ code: 'E_FATAL', argument: 'multihead' });
    expect(error.message).toMatch('please report');
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
    expect(out.toFloat32()).toEqual(new Float32Array(8));
  });
});
