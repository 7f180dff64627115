import { describe, expect, it } from 'vitest';
import { builds, loadBuild } from './builds.ts';
import { keepsWeights, philox4x32 } from './philox.ts';
import { random } from './random.ts';
import { filled } from './random_case.ts';
import * as reference from './reference.ts';

describe('Philox 4x32-10', () => {
  // Known-answer tests of Random123, the library of Philox's authors.
  it.each([
    [
      [0, 0, 0, 0],
      [0, 0],
      [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8],
    ],
    [
      [0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff],
      [0xffffffff, 0xffffffff],
      [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd],
    ],
    [
      [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
      [0xa4093822, 0x299f31d0],
      [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
    ],
  ])('of %j with key %j', (counter, key, answer) => {
    type Four = [number, number, number, number];
    expect(philox4x32(counter as Four, key as [number, number])).toEqual(answer);
  });
});

describe.each(builds)('dropout, %s', async (simd) => {
  const mh = await loadBuild(simd);

  const r = random(31);
  const q = filled(r, 2, 2, 33, 4);
  const k = filled(r, 2, 1, 71, 4);
  const v = filled(r, 2, 1, 71, 3);

  it.each([0, 7, 2 ** 53 - 1, 2n ** 32n, 2n ** 64n - 1n])('has the mask that its formula gives, seed %s', (seed) => {
    const probability = 0.3;
    const keeps = keepsWeights(probability, BigInt(seed));
    mh.scope(() => {
      const { dropoutMask } = mh.attention(q, k, v, {
        dropout: { probability, seed },
        // Hidden positions, which the mask covers too.
        causal: 'topLeft',
        return: ['dropoutMask'],
      });
      expect(dropoutMask.dtype).toBe('bool');
      expect(dropoutMask.shape).toEqual([2, 2, 33, 71]);
      dropoutMask.data.forEach((kept, at) => {
        const [j, i, h, b] = [at % 71, Math.floor(at / 71) % 33, Math.floor(at / 2343) % 2, at > 4685];
        if (kept !== (keeps(Number(b), h, i, j) ? 1 : 0)) expect.fail(`(${b}, ${h}, ${i}, ${j})`);
      });
    });
  });

  it('keeps the share 1 − p of the weights, without a pattern along any axis', () => {
    const n = 128;
    const x = { shape: [2, 4, n, 1], data: new Float32Array(8 * n) };
    for (const probability of [0.1, 0.5, 0.9]) {
      mh.scope(() => {
        const { dropoutMask } = mh.attention(x, x, x, {
          dropout: { probability, seed: 1 },
          return: ['dropoutMask'],
        });
        const { data, size } = dropoutMask;
        const deviation = (count: number) => Math.sqrt((probability * (1 - probability)) / count);
        const share = data.reduce((sum, kept) => sum + kept, 0) / size;
        expect(Math.abs(share - (1 - probability))).toBeLessThan(5 * deviation(size));
        // Pairs of adjacent positions along j, i, h and b must both be kept with probability (1 − p)².
        for (const step of [1, 2, 4, n, n * n, 4 * n * n]) {
          let both = 0;
          for (let at = 0; at + step < size; at += 1) both += (data[at] ?? 0) & (data[at + step] ?? 0);
          const wanted = (1 - probability) ** 2;
          expect(Math.abs(both / (size - step) - wanted)).toBeLessThan(6 * deviation(size - step));
        }
      });
    }
  });

  it('has the right mean: kept weights are divided by 1 − p', () => {
    const expected = reference.attention(q, k, v).out;
    const rounds = 400;
    const mean = new Float64Array(expected.length);
    for (let seed = 0; seed < rounds; seed += 1) {
      mh.scope(() => {
        const { out } = mh.attention(q, k, v, { dropout: { probability: 0.5, seed } });
        out.data.forEach((x, at) => (mean[at] = (mean[at] as number) + x / rounds));
      });
    }
    expect(reference.maxDifference(mean, expected)).toBeLessThan(0.05);
  });

  it('does not change weights and log-sum-exp, and does nothing at p = 0', () => {
    mh.scope(() => {
      const plain = mh.attention(q, k, v, { return: ['lse', 'weights'] });
      const dropped = mh.attention(q, k, v, {
        dropout: { probability: 0.5 },
        return: ['lse', 'weights'],
      });
      expect(dropped.weights.data).toEqual(plain.weights.data);
      expect(dropped.lse.data).toEqual(plain.lse.data);
      expect(dropped.out.data).not.toEqual(plain.out.data);
      const none = mh.attention(q, k, v, { dropout: { probability: 0, seed: 5 } });
      expect(none.out.data).toEqual(plain.out.data);
    });
  });

  it('returns a mask of ones at p = 0 and without dropout, also at hidden positions', () => {
    for (const dropout of [{ probability: 0 }, { probability: 0, seed: 5 }, undefined]) {
      mh.scope(() => {
        const { out, dropoutMask } = mh.attention(q, k, v, {
          dropout,
          causal: 'topLeft',
          return: ['dropoutMask'],
        });
        expect(dropoutMask.data).toEqual(new Uint8Array(2 * 2 * 33 * 71).fill(1));
        expect(out.data).toEqual(mh.attention(q, k, v, { causal: 'topLeft' }).out.data);
      });
    }
  });

  it('gives the same mask for a seed as number or bigint, and other masks for other seeds', () => {
    mh.scope(() => {
      const out = (seed: number | bigint) => mh.attention(q, k, v, { dropout: { probability: 0.5, seed } }).out.data.slice();
      expect(out(3)).toEqual(out(3n));
      expect(out(0)).not.toEqual(out(1));
      expect(out(0)).not.toEqual(out(2n ** 32n));
      expect(mh.attention(q, k, v, { dropout: { probability: 0.5 } }).out.data).toEqual(out(0));
    });
  });
});
