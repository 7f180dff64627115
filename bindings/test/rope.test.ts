import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, filled } from './random_case.ts';
import * as reference from './reference.ts';

describe.each(builds)('rotate, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it(`agrees with float64 (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(60); round += 1) {
      const r = random(runSeed + round);
      const [batch, rows, width] = [r.int(1, 3), r.int(1, 9), r.pick([2, 6, 7, 64])];
      const x = filled(r, batch, r.int(1, 3), rows, width);
      const length = r.next() < 0.5 ? rows : batch * rows;
      const positions = Int32Array.from({ length }, () => r.int(-10, r.pick([10, 1_000_000])));
      const even = 2 * (width >> 1);
      const rope = {
        style: r.pick(['interleaved', 'half'] as const),
        ...(r.next() < 0.5 ? { base: r.pick([10, 500_000]) } : {}),
        ...(even < width || r.next() < 0.5 ? { rotaryDim: r.pick([2, even]) } : {}),
      };
      mh.scope(() => {
        const y = mh.rotate(x, positions, rope);
        expect(y.shape).toEqual(x.shape);
        const label = `seed ${runSeed + round}: (${x.shape}), ${JSON.stringify(rope)}`;
        const expected = reference.rotate(x, positions, rope);
        expect(reference.maxDifference(y.data, expected), label).toBeLessThan(1e-6);
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('rotates pairs by their angles', () => {
    const x = { shape: [1, 1, 1, 4], data: new Float32Array([1, 0, 0, 1]) };
    const position = new Int32Array([1]);
    mh.scope(() => {
      const [one, hundredth] = [1, 0.01].map((a) => [Math.cos(a), Math.sin(a)]) as [number[], number[]];
      const near = (values: number[]) => values.map((value) => expect.closeTo(value, 6) as number);
      expect([...mh.rotate(x, position, { style: 'interleaved' }).data]).toEqual(
        near([one[0] as number, one[1] as number, -(hundredth[1] as number), hundredth[0] as number]),
      );
      expect([...mh.rotate(x, position, { style: 'half' }).data]).toEqual(
        near([one[0] as number, -(hundredth[1] as number), one[1] as number, hundredth[0] as number]),
      );
      const partial = mh.rotate(x, position, { style: 'half', rotaryDim: 2, base: 3 });
      expect([...partial.data]).toEqual(near([one[0] as number, one[1] as number, 0, 1]));
      expect([...mh.rotate(x, new Int32Array([0]), { style: 'half' }).data]).toEqual([1, 0, 0, 1]);
    });
  });

  it('gives the same result before attention() as inside it', () => {
    const r = random(5);
    const [q, k, v] = [filled(r, 1, 2, 3, 8), filled(r, 1, 1, 9, 8), filled(r, 1, 1, 9, 4)];
    const rope = { style: 'half', base: 100 } as const;
    const [qPositions, kPositions] = [new Int32Array([6, 7, 8]), Int32Array.from({ length: 9 }, (_, j) => j)];
    mh.scope(() => {
      const [turnedQ, turnedK] = [mh.rotate(q, qPositions, rope), mh.rotate(k, kPositions, rope)];
      const before = mh.attention(turnedQ, turnedK, v, { causal: 'bottomRight' }).out;
      const inside = mh.attention(q, k, v, { causal: 'bottomRight', rope }).out;
      expect(reference.maxDifference(inside.data, before.data)).toBeLessThan(1e-6);
    });
  });

  it('refuses positions and rotations that do not fit', () => {
    const x = filled(random(6), 2, 1, 3, 8);
    const positions = new Int32Array(3);
    const call = (more: { x?: unknown; positions?: unknown; rope?: unknown }) => () =>
      mh.rotate((more.x ?? x) as typeof x, (more.positions ?? positions) as Int32Array, (more.rope ?? { style: 'half' }) as { style: 'half' });
    expectRefused(mh, call({ x: filled(random(6), 1, 3, 8) }), 'E_SHAPE', 'x', '(B, H, N, d)');
    expectRefused(mh, call({ positions: new Int32Array(4) }), 'E_SHAPE', 'positions', '3', '6', '4');
    expectRefused(mh, call({ positions: new Int32Array(0) }), 'E_OPTION', 'positions');
    expectRefused(mh, call({ positions: [0, 1, 2] }), 'E_OPTION', 'positions', 'Int32Array', 'number[]');
    expectRefused(mh, call({ rope: {} }), 'E_OPTION', 'rope.style', 'undefined');
    expectRefused(mh, call({ rope: { style: 'half', rotaryDim: 9 } }), 'E_OPTION', 'rope.rotaryDim', '8');
    expectRefused(mh, call({ rope: { style: 'half', base: NaN } }), 'E_OPTION', 'rope.base');
    expectRefused(mh, call({ rope: { style: 'half', base: '1' } }), 'E_OPTION', 'rope.base', '"1"');
    expectRefused(mh, call({ rope: { style: 'half', qPositions: positions } }), 'E_OPTION', 'qPositions');
    const half = { shape: x.shape, data: new Uint16Array(48), dtype: 'f16' };
    expectRefused(mh, call({ x: half }), 'E_OPTION', 'x', 'Float32Array');
  });
});
