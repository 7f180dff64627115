// Compares mh.prepare() with mh.attention(), bit for bit; and tests bad arguments of run().

import type { FloatDType, MultiheadErrorCode, PrepareOptions, Tensor } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, randomCase } from './random_case.ts';
import { maxDifference } from './reference.ts';

const tiny = [1, 4, 32, 16];

/** The numbers of a tensor as bits. */
const bits = ({ data }: Tensor<FloatDType>): Uint8Array => new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();

describe.each(builds)('prepare, %s', async (simd) => {
  const mh = await loadBuild(simd);

  const filledTensor = (shape: readonly number[], seed: number): Tensor => mh.tensor(random(seed).floats(shape.reduce((a, b) => a * b, 1)), shape);
  const inputs = () => [1, 2, 3].map((seed) => filledTensor(tiny, seed)) as [Tensor, Tensor, Tensor];

  /** Expects run() to write what attention() returns with the same options. */
  function expectEqual(
    options: PrepareOptions,
    [q, k, v]: [Tensor<FloatDType>, Tensor<FloatDType>, Tensor<FloatDType>],
    run: (out: Tensor<FloatDType>, lse: Tensor) => void,
    label = '',
  ): void {
    mh.scope(() => {
      const { q: _q, numKvHeads: _h, keys: _k, valueDim: _w, ...rest } = options;
      const { dtype: _d, kvDtype: _e, ...same } = rest;
      const expected = mh.attention(q, k, v, { ...same, return: ['lse'] });
      const out = mh.zeros(expected.out.shape, { dtype: expected.out.dtype });
      const lse = mh.zeros(expected.lse.shape);
      run(out, lse);
      expect(bits(out), label).toEqual(bits(expected.out));
      expect(bits(lse), label).toEqual(bits(expected.lse));
    });
  }

  it(`equals attention() bit for bit on random shapes and options (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(100); round += 1) {
      const c = randomCase(runSeed + round);
      const { return: _, capture: __, outDtype: ___, ...masking } = { capture: 0, ...c.options };
      mh.scope(() => {
        const [q, k, v] = [c.q, c.k, c.v].map(({ given }) => {
          const { shape, data } = given;
          const stated = 'dtype' in given && given.dtype !== undefined ? given.dtype : 'f32';
          return mh.tensor<FloatDType>(data, [...shape], { dtype: stated });
        }) as [Tensor<FloatDType>, Tensor<FloatDType>, Tensor<FloatDType>];
        const options: PrepareOptions = {
          ...masking,
          ...{ q: q.shape, numKvHeads: k.shape[1], keys: k.shape[2], valueDim: v.shape[3] },
          ...{ dtype: q.dtype, kvDtype: k.dtype, outDtype: c.outDtype, return: ['lse'] },
        };
        const op = mh.prepare(options);
        for (let run = 0; run < 2; run += 1) {
          expectEqual(options, [q, k, v], (out, lse) => op.run(q, k, v, out, lse), c.label);
          q.data.reverse();
          v.data.reverse();
        }
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('has the shapes that its runs take', () => {
    using op = mh.prepare({ q: [2, 6, 5, 8], numKvHeads: 3, keys: 7, valueDim: 4 });
    expect(op.shapes).toEqual({
      q: [2, 6, 5, 8],
      k: [2, 3, 7, 8],
      v: [2, 3, 7, 4],
      out: [2, 6, 5, 4],
      lse: [2, 6, 5],
    });
    using same = mh.prepare({ q: [2, 6, 5, 8] });
    expect([same.shapes.k, same.shapes.v]).toEqual([op.shapes.q, op.shapes.q]);
  });

  it('allocates nothing in a run', () => {
    mh.scope(() => {
      const [q, k, v] = inputs();
      const out = mh.zeros(tiny);
      const op = mh.prepare({ q: tiny, causal: 'topLeft' });
      const before = mh.memory();
      for (let i = 0; i < 100; i += 1) op.run(q, k, v, out);
      expect(mh.memory()).toEqual(before);
    });
  });

  it('still runs after the memory has grown', () => {
    mh.scope(() => {
      const [q, k, v] = inputs();
      const options: PrepareOptions = { q: tiny, causal: 'topLeft', return: ['lse'] };
      const op = mh.prepare({ ...options, sinks: new Float32Array(4) });
      const { heap } = mh.memory();
      const big = mh.zeros([heap / 4]);
      expect(mh.memory().heap).toBeGreaterThan(heap);
      const sinks = new Float32Array(4);
      expectEqual({ ...options, sinks }, [q, k, v], (out, lse) => op.run(q, k, v, out, lse));
      big.dispose();
    });
  });

  it('reads a mask tensor in every run, and copies a typed array once', () => {
    mh.scope(() => {
      const [q, k, v] = inputs();
      const data = new Uint8Array(32).fill(1);
      const options: PrepareOptions = { q: tiny, return: ['lse'] };
      const shape = [1, 32];
      const mask = mh.tensor(data, shape);
      const live = mh.prepare({ ...options, mask });
      const copied = mh.prepare({ ...options, mask: { shape, data } });
      data.fill(0, 3);
      mask.data.set(data);
      const all = { ...options, mask: mh.tensor(new Uint8Array(32).fill(1), shape) };
      expectEqual({ ...options, mask }, [q, k, v], (out, lse) => live.run(q, k, v, out, lse));
      expectEqual(all, [q, k, v], (out, lse) => copied.run(q, k, v, out, lse));
    });
  });

  it('runs with new lengths, and allocates nothing for them', () => {
    mh.scope(() => {
      const shape = [3, 2, 9, 16];
      const q = filledTensor(shape, 1);
      const [k, v] = [filledTensor([3, 1, 40, 16], 2), filledTensor([3, 1, 40, 16], 3)];
      const options: PrepareOptions = {
        ...{ q: shape, numKvHeads: 1, keys: 40, causal: 'bottomRightOfLength', return: ['lse'] },
      };
      const op = mh.prepare({ ...options, kvLengths: Int32Array.of(40, 0, 7) });
      const before = mh.memory();
      for (const lengths of [
        [1, 40, 40],
        [0, 0, 0],
        [40, 40, 40],
        [9, 17, 33],
      ]) {
        const kvLengths = Int32Array.from(lengths);
        op.setKvLengths(kvLengths);
        expect(mh.memory()).toEqual(before);
        // Changing the array later has no effect, because setKvLengths() copies it.
        const given = kvLengths.slice();
        kvLengths.fill(-1);
        const now = { ...options, kvLengths: given };
        expectEqual(now, [q, k, v], (out, lse) => op.run(q, k, v, out, lse), lengths.join());
      }
    });
  });

  it('sets lengths after the memory has grown', () => {
    mh.scope(() => {
      const [q, k, v] = inputs();
      const options: PrepareOptions = { q: tiny, return: ['lse'] };
      const op = mh.prepare({ ...options, kvLengths: Int32Array.of(1) });
      op.setKvLengths(Int32Array.of(2));
      const { heap } = mh.memory();
      mh.zeros([heap / 4]).dispose();
      expect(mh.memory().heap).toBeGreaterThan(heap);
      op.setKvLengths(Int32Array.of(31));
      const now = { ...options, kvLengths: Int32Array.of(31) };
      expectEqual(now, [q, k, v], (out, lse) => op.run(q, k, v, out, lse));
    });
  });

  it('decodes over tensors of fixed size: keys are written row by row, and the lengths grow', () => {
    const [heads, keys, width] = [2, 4096, 16];
    const [newKeys, newValues] = [random(5).floats(heads * keys * width), random(6).floats(heads * keys * width)];
    mh.scope(() => {
      const shape = [1, 2 * heads, 1, width];
      const q = filledTensor(shape, 4);
      const out = mh.zeros(shape);
      const [k, v] = [mh.zeros([1, heads, keys, width]), mh.zeros([1, heads, keys, width])];
      const length = Int32Array.of(100);
      const op = mh.prepare({ q: shape, numKvHeads: heads, keys, kvLengths: length });
      let filled = 0;
      for (const upTo of [100, 101, 255, 256, 257, 300, 1024, 4095, 4096, 17]) {
        for (let head = 0; head < heads; head += 1) {
          const [from, to] = [(head * keys + filled) * width, (head * keys + Math.max(filled, upTo)) * width];
          k.data.set(newKeys.subarray(from, to), from);
          v.data.set(newValues.subarray(from, to), from);
        }
        filled = Math.max(filled, upTo);
        length[0] = upTo;
        op.setKvLengths(length);
        op.run(q, k, v, out);
        const expected = mh.attention(q, k, v, { kvLengths: length }).out;
        expect(maxDifference(out.data, expected.data), `${upTo} keys`).toBeLessThan(2e-6);
      }
    });
  });

  it('refuses lengths that do not fit, and keeps the earlier ones', () => {
    mh.scope(() => {
      const [q, k, v] = inputs();
      const kvLengths = Int32Array.of(9);
      const op = mh.prepare({ q: tiny, return: ['lse'], kvLengths });
      const refused = (lengths: unknown, ...expected: [MultiheadErrorCode, string]) =>
        expectRefused(mh, () => op.setKvLengths(lengths as Int32Array), expected[0], 'kvLengths', expected[1]);
      refused(undefined, 'E_OPTION', 'undefined');
      refused([3], 'E_OPTION', 'number[]');
      refused(Uint32Array.of(3), 'E_OPTION', 'Uint32Array');
      refused(Int32Array.of(), 'E_SHAPE', '0 values');
      refused(Int32Array.of(1, 2), 'E_SHAPE', '2 values');
      refused(Int32Array.of(-1), 'E_OPTION', '-1 for entry 0');
      refused(Int32Array.of(33), 'E_OPTION', '33 for entry 0');
      const options: PrepareOptions = { q: tiny, return: ['lse'], kvLengths };
      expectEqual(options, [q, k, v], (out, lse) => op.run(q, k, v, out, lse));

      const without = mh.prepare({ q: tiny });
      expectRefused(mh, () => without.setKvLengths(kvLengths), 'E_OPTION', 'kvLengths', 'without');
      op.dispose();
      expectRefused(mh, () => op.setKvLengths(kvLengths), 'E_DISPOSED', 'prepared');
      const none = mh.prepare({ q: [0, 1, 1, 1], kvLengths: Int32Array.of() });
      none.setKvLengths(Int32Array.of());
    });
  });

  it('refuses the options that attention() refuses, and names them', () => {
    const refused = (options: unknown, ...expected: [MultiheadErrorCode, string, ...string[]]) =>
      expectRefused(mh, () => mh.prepare(options as PrepareOptions), ...expected);
    refused({}, 'E_SHAPE', 'q', 'undefined');
    refused({ q: [4, 32, 16] }, 'E_SHAPE', 'q', '(4, 32, 16)');
    refused({ q: [1, 4, 2 ** 31, 0] }, 'E_OPTION', 'q', '2147483648');
    refused({ q: tiny, numKvHeads: 3 }, 'E_SHAPE', 'numKvHeads', '3', '4');
    refused({ q: tiny, keys: 1.5 }, 'E_OPTION', 'keys', '1.5');
    refused({ q: tiny, valueDim: -1 }, 'E_OPTION', 'valueDim', '-1');
    refused({ q: tiny, dtype: 'f64' }, 'E_OPTION', 'dtype', 'f64');
    refused({ q: tiny, kvDtype: 'bool' }, 'E_OPTION', 'kvDtype', 'bool');
    refused({ q: tiny, outDtype: 1 }, 'E_OPTION', 'outDtype', '1');
    refused({ q: tiny, return: ['weights'] }, 'E_OPTION', 'return', 'weights');
    refused({ q: tiny, out: 1 }, 'E_OPTION', 'out', 'run()');
    refused({ q: tiny, capture: [] }, 'E_OPTION', 'capture', 'attention()');
    refused({ q: tiny, keys: 7, causal: true }, 'E_OPTION', 'causal', 'bottomRight');
    refused({ q: tiny, scale: NaN }, 'E_OPTION', 'scale', 'NaN');
    refused({ q: tiny, sinks: new Float32Array(3) }, 'E_SHAPE', 'sinks', '3', '4');
    const mask = { shape: [31, 32], data: new Uint8Array(31 * 32) };
    refused({ q: tiny, mask }, 'E_SHAPE', 'mask', '(31, 32)');
    refused({ q: [1, 1, 64, 2 ** 26] }, 'E_MEMORY', 'memory');
  });

  it('refuses tensors that do not fit, writes nothing, and then runs again', async () => {
    const other = await loadBuild(simd);
    mh.scope(() => {
      const [q, k, v] = inputs();
      const out = mh.tensor(new Float32Array(2048).fill(7), tiny);
      const [gone, wide] = [mh.zeros(tiny), mh.zeros([1, 4, 32, 17])];
      gone.dispose();
      const half = mh.zeros(tiny, { dtype: 'f16' });
      const lse = mh.zeros([1, 4, 32]);
      const op = mh.prepare({ q: tiny });
      const withLse = mh.prepare({ q: tiny, return: ['lse'] });
      const run = op.run.bind(op) as (...tensors: unknown[]) => void;
      const refused = (tensors: unknown[], code: string, argument: string, word: string) => {
        const error = errorOf(() => run(...tensors));
        expect([error.code, error.argument]).toEqual([code, argument]);
        expect(error.message).toContain(word);
      };
      refused([gone, k, v, out], 'E_DISPOSED', 'q', '(1, 4, 32, 16)');
      refused([q, wide, v, out], 'E_SHAPE', 'k', '(1, 4, 32, 17)');
      refused([q, k, lse, out], 'E_SHAPE', 'v', '(1, 4, 32)');
      refused([q, k, v, wide], 'E_SHAPE', 'out', '(1, 4, 32, 17)');
      refused([q, k, half, out], 'E_OPTION', 'v', 'f16');
      refused([q, k, v, half], 'E_OPTION', 'out', 'f16');
      refused([{ shape: tiny, data: new Float32Array(2048) }, k, v, out], 'E_OPTION', 'q', 'Object');
      refused([q, k, other.zeros(tiny), out], 'E_OPTION', 'v', 'another');
      refused([q, k, v], 'E_OPTION', 'out', 'undefined');
      for (const input of ['q', 'k', 'v'] as const) {
        const tensors = { q, k, v, [input]: out };
        refused([tensors.q, tensors.k, tensors.v, out], 'E_OPTION', 'out', `same as ${input}`);
      }
      refused([q, k, v, out, lse], 'E_OPTION', 'lse', 'return');
      expect(errorOf(() => withLse.run(q, k, v, out))).toMatchObject({ argument: 'lse' });
      expect(errorOf(() => withLse.run(q, k, v, out, wide))).toMatchObject({ code: 'E_SHAPE' });
      expect(out.data.every((x) => x === 7)).toBe(true);
      op.run(q, k, v, out);
      expect(bits(out)).toEqual(bits(mh.attention(q, k, v).out));
    });
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('refuses to run when its bias is disposed, or is the output', () => {
    mh.scope(() => {
      const [q, k, v] = inputs();
      const bias = filledTensor([1, 4, 32, 16], 4);
      const op = mh.prepare({ q: tiny, keys: 16, bias });
      const key = filledTensor(op.shapes.k, 5);
      expect(errorOf(() => op.run(q, key, key, bias)).message).toMatch('same as bias');
      expect(errorOf(() => op.run(q, k, v, mh.zeros(tiny)))).toMatchObject({ argument: 'k' });
      bias.dispose();
      expect(errorOf(() => op.run(q, key, key, mh.zeros(tiny)))).toMatchObject({
        code: 'E_DISPOSED',
        argument: 'bias',
      });
    });
  });

  it('is disposed once, frees its memory, and then refuses to run', () => {
    const before = mh.memory();
    const mask = { shape: [32, 32], data: new Uint8Array(1024).fill(1) };
    const op = mh.prepare({ q: tiny, mask });
    expect(mh.memory()).toMatchObject({ live: before.live + 1, bytes: before.bytes + 1024 });
    op.dispose();
    op.dispose();
    op[Symbol.dispose]();
    expect(op.disposed).toBe(true);
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
    mh.scope(() => {
      const [q, k, v] = inputs();
      expectRefused(mh, () => op.run(q, k, v, q), 'E_DISPOSED', 'prepared');
    });
  });

  it('does not interfere with other prepared operations', () => {
    mh.scope(() => {
      const [q, k, v] = inputs();
      const ops = (['topLeft', false, { offset: 5 }] as const).map((causal) => ({
        causal,
        op: mh.prepare({ q: tiny, causal, return: ['lse'] }),
      }));
      mh.prepare({ q: [1, 1, 1, 1] }).dispose();
      for (const { op, causal } of [...ops, ...ops.reverse()]) {
        const options: PrepareOptions = { q: tiny, causal, return: ['lse'] };
        expectEqual(options, [q, k, v], (out, lse) => op.run(q, k, v, out, lse));
      }
    });
  });
});
