import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import * as reference from './reference.ts';

const product = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1);

describe.each(builds)('linear, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it(`agrees with float64 on random shapes (MULTIHEAD_SEED=${runSeed})`, () => {
    for (let round = 0; round < 60; round += 1) {
      const r = random(runSeed + round);
      const [inWidth, outWidth] = [r.pick([1, 3, 8, 33, 130]), r.pick([1, 5, 16, 67])];
      const leading = r.pick([[], [r.int(1, 40)], [r.int(1, 3), r.int(1, 9)], [2, r.int(1, 3), 4], [0]]);
      const shape = [...leading, inWidth];
      const x = { shape, data: r.floats(product(shape)) };
      const weight = { shape: [outWidth, inWidth], data: r.floats(outWidth * inWidth) };
      const bias = r.next() < 0.5 ? { shape: [outWidth], data: r.floats(outWidth) } : undefined;
      const expected = reference.linear(x, weight, bias);
      mh.scope(() => {
        const y = mh.linear(x, weight, { bias });
        const label = `seed ${runSeed + round}: x (${shape}), weight (${weight.shape})`;
        expect(y.shape, label).toEqual([...leading, outWidth]);
        expect(reference.maxDifference(y.data, expected), label).toBeLessThan(1e-6 * (8 + inWidth / 8));
      });
    }
    expect(mh.memory().live).toBe(0);
  });

  it('writes to `out`', () => {
    mh.scope(() => {
      const x = { shape: [1, 2], data: new Float32Array([1, 2]) };
      const weight = { shape: [2, 2], data: new Float32Array([1, 0, 0, 10]) };
      const out = mh.zeros([1, 2]);
      expect(mh.linear(x, weight, { out })).toBe(out);
      expect([...out.data]).toEqual([1, 20]);
    });
  });

  it('refuses arguments that do not fit', () => {
    const tensor = (...shape: number[]) => ({ shape, data: new Float32Array(product(shape)) });
    const x = tensor(3, 4);
    expectRefused(mh, () => mh.linear(x, tensor(5, 3)), 'E_SHAPE', 'weight', '4', '3');
    expectRefused(mh, () => mh.linear(x, tensor(4)), 'E_SHAPE', 'weight', '(out, in)');
    expectRefused(mh, () => mh.linear(x, tensor(5, 4), { bias: tensor(4) }), 'E_SHAPE', 'bias', '5', '4');
    expectRefused(mh, () => mh.linear(x, tensor(5, 4), { biass: tensor(5) } as never), 'E_OPTION', 'biass', 'bias');
    const none = { shape: [2 ** 16, 2 ** 16, 0], data: new Float32Array() };
    const noWeight = { shape: [0, 0], data: new Float32Array() };
    expectRefused(mh, () => mh.linear(none, noWeight), 'E_SHAPE', 'x', 'extents below 2³¹', '4294967296');
    mh.scope(() => {
      const out = mh.zeros([3, 6]);
      expectRefused(mh, () => mh.linear(x, tensor(5, 4), { out }), 'E_SHAPE', 'out', '(3, 5)', '(3, 6)');
      const square = mh.zeros([4, 4]);
      expectRefused(mh, () => mh.linear(square, tensor(4, 4), { out: square }), 'E_OPTION', 'out');
    });
  });
});
