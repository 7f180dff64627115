import type { Causal, TensorLike } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { unitInLastPlace } from './half_reference.ts';
import { random, runSeed } from './random.ts';
import { capturedPart, caseCount, filled, product, randomCase, stageTolerance, tolerance, usualCases, type RandomCase } from './random_case.ts';
import * as reference from './reference.ts';

/** Bound for inputs in [-1, 1]: SEMANTICS.md, "Precision". */
const f32Tolerance = 2e-6;

describe.each(builds)('attention, %s', async (simd) => {
  const mh = await loadBuild(simd);

  /** Runs a case and compares every requested result. */
  function expectAgreement(c: RandomCase): void {
    const { q, k, v, extents, options, outDtype, label } = c;
    const expected = reference.attention(q.plain, k.plain, v.plain, options);
    const allowed = tolerance(c.width, options, expected);
    mh.scope(() => {
      const result = mh.attention(q.given, k.given, v.given, options);
      const expectNear = (name: string, actual: ArrayLike<number>, wanted: ArrayLike<number>, limit = allowed) =>
        expect(reference.maxDifference(actual, wanted), `${name}, ${label}`).toBeLessThan(limit);

      expect(result.out.shape, label).toEqual([...extents.slice(0, 3), v.plain.shape[3]]);
      expect(result.out.dtype, label).toBe(outDtype);
      const survivors = 1 - (options.dropout?.probability ?? 0);
      result.out.toFloat32().forEach((x, index) => {
        const wanted = expected.out[index] as number;
        const last = 1.5 * unitInLastPlace(wanted, outDtype);
        const difference = reference.maxDifference([x], [wanted]);
        if (difference > allowed / survivors + last) {
          expect.fail(`out[${index}] is ${x}, expected ${wanted}, ${label}`);
        }
      });
      expect(result.weights?.shape, label).toEqual(extents);
      expectNear('weights', result.weights?.data ?? [], expected.weights);
      expect(result.lse?.shape, label).toEqual(extents.slice(0, 3));
      // Outputs and weights are bounded by 1; the log-sum-exp is not, so its tolerance is larger.
      expectNear('lse', result.lse?.data ?? [], expected.lse, 4 * allowed);
      if (options.dropout) {
        expect(result.dropoutMask?.data, label).toEqual(expected.dropoutMask);
      }
      (options.capture ?? []).forEach((capture, index) => {
        const part = capturedPart(expected[capture.stage], extents, capture);
        const captured = result.captures?.[index];
        expect(captured?.shape, label).toEqual(part.shape);
        const limit = stageTolerance(capture.stage, allowed);
        expectNear(`capture ${index}`, captured?.data ?? [], part.data, limit);
      });
    });
  }

  it(`agrees with float64 on random shapes and options (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(usualCases); round += 1) {
      expectAgreement(randomCase(runSeed + round));
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it.each([1, 7, 20, 33, 80, 96, 256])('agrees with float64 for heads of width %i', (width) => {
    const r = random(width);
    const [q, k] = [filled(r, 1, 2, 19, width), filled(r, 1, 1, 37, width)];
    for (const v of [filled(r, 1, 1, 37, width), filled(r, 1, 1, 37, 5)]) {
      const expected = reference.attention(q, k, v, { causal: 'bottomRight' });
      mh.scope(() => {
        const { out } = mh.attention(q, k, v, { causal: 'bottomRight' });
        expect(reference.maxDifference(out.data, expected.out)).toBeLessThan(f32Tolerance);
      });
    }
  });

  it.each<[Causal, number, number, string]>([
    ['topLeft', 2, 5, '10000 11000'],
    ['bottomRight', 2, 5, '11110 11111'],
    ['bottomRight', 5, 2, '00 00 00 10 11'],
    ['topLeft', 5, 2, '10 11 11 11 11'],
    [{ offset: 1 }, 2, 5, '11000 11100'],
    [{ offset: -1 }, 3, 3, '000 100 110'],
    [false, 2, 3, '111 111'],
  ])('causal %j with %i queries and %i keys sees %s', (causal, n, m, rows) => {
    const r = random(1);
    mh.scope(() => {
      const { weights, lse, out } = mh.attention(filled(r, 1, 1, n, 4), filled(r, 1, 1, m, 4), filled(r, 1, 1, m, 4), {
        causal,
        return: ['weights', 'lse'],
      });
      const seen = Array.from(weights.data, (w) => (w > 0 ? '1' : '0')).join('');
      expect(seen).toBe(rows.replaceAll(' ', ''));
      rows.split(' ').forEach((row, i) => {
        if (row.includes('1')) return;
        expect(lse.data[i]).toBe(-Infinity);
        expect([...out.data.subarray(4 * i, 4 * i + 4)]).toEqual([0, 0, 0, 0]);
      });
    });
  });

  it('gives zeros without keys, and empty results for an empty batch', () => {
    const r = random(2);
    mh.scope(() => {
      const none = mh.attention(filled(r, 2, 2, 3, 4), filled(r, 2, 2, 0, 4), filled(r, 2, 2, 0, 5), {
        return: ['lse', 'weights'],
      });
      expect(none.out.shape).toEqual([2, 2, 3, 5]);
      expect(none.out.data.every((x) => x === 0)).toBe(true);
      expect(none.lse.data.every((x) => x === -Infinity)).toBe(true);
      expect(none.weights.size).toBe(0);

      const empty = mh.attention(filled(r, 0, 2, 3, 4), filled(r, 0, 2, 3, 4), filled(r, 0, 2, 3, 4));
      expect(empty.out.shape).toEqual([0, 2, 3, 4]);
      expect(empty.out.data).toHaveLength(0);
    });
  });

  it('does not let NaN and infinities of hidden keys reach the result', () => {
    const r = random(3);
    const [q, k, v] = [filled(r, 1, 1, 3, 4), filled(r, 1, 1, 3, 4), filled(r, 1, 1, 3, 4)];
    const expected = reference.attention(q, k, v, { causal: 'topLeft' });
    k.data.fill(NaN, 8);
    v.data.fill(Infinity, 8);
    mh.scope(() => {
      const { out } = mh.attention(q, k, v, { causal: 'topLeft' });
      expect(reference.maxDifference(out.data.subarray(0, 8), expected.out.subarray(0, 8))).toBeLessThan(f32Tolerance);
    });
  });

  it('does not treat finite biases of -3.4e38 as masks', () => {
    const r = random(4);
    const [q, k, v] = [filled(r, 1, 1, 1, 4), filled(r, 1, 1, 2, 4), filled(r, 1, 1, 2, 4)];
    const bias = { shape: [1, 2], data: new Float32Array([-3.4e38, -3.4e38]) };
    mh.scope(() => {
      const { weights } = mh.attention(q, k, v, { bias, return: ['weights'] });
      expect([...weights.data]).toEqual([0.5, 0.5]);
    });
  });

  it('gives the same bits for tensors and for typed arrays, and writes to `out`', () => {
    const r = random(5);
    const [q, k, v] = [filled(r, 2, 4, 9, 8), filled(r, 2, 2, 13, 8), filled(r, 2, 2, 13, 5)];
    mh.scope(() => {
      const plain = mh.attention(q, k, v);
      const tensors = [q, k, v].map(({ shape, data }) => mh.tensor(data, shape));
      const out = mh.zeros(plain.out.shape);
      const [tq, tk, tv] = tensors as [TensorLike, TensorLike, TensorLike];
      expect(mh.attention(tq, tk, tv, { out }).out).toBe(out);
      expect(out.data).toEqual(plain.out.data);
    });
  });

  it('takes the same tensor as q, k and v, and tensors of another instance', async () => {
    const other = await loadBuild(simd);
    const { shape, data } = filled(random(6), 1, 2, 5, 8);
    const x = other.tensor(data, shape);
    const expected = reference.attention(x, x, x);
    mh.scope(() => {
      const own = mh.tensor(data, shape);
      expect(reference.maxDifference(mh.attention(own, own, own).out.data, expected.out)).toBeLessThan(f32Tolerance);
      expect(reference.maxDifference(mh.attention(x, x, x).out.data, expected.out)).toBeLessThan(f32Tolerance);
    });
    x.dispose();
  });

  describe('refuses', () => {
    const r = random(7);
    const q = filled(r, 1, 4, 6, 8);
    const k = filled(r, 1, 2, 9, 8);
    const v = filled(r, 1, 2, 9, 5);
    const ones = (...shape: number[]) => ({ shape, data: new Uint8Array(product(shape)).fill(1) });
    /** A call without type checks, as from plain JavaScript. */
    const anything = (value: unknown) => value as never;

    it.each<[string, TensorLike, TensorLike, TensorLike, string]>([
      ['a q of rank 3', filled(r, 4, 6, 8), k, v, 'q'],
      ['a k of rank 2', q, filled(r, 9, 8), v, 'k'],
      ['a v of rank 1', q, k, filled(r, 5), 'v'],
      ['a k of another width', q, filled(r, 1, 2, 9, 7), v, 'k'],
      ['a k of another batch', q, filled(r, 2, 2, 9, 8), v, 'k'],
      ['a v of another length', q, k, filled(r, 1, 2, 8, 5), 'v'],
      ['a v with other heads', q, k, filled(r, 1, 4, 9, 5), 'v'],
      ['heads that are no multiple', q, filled(r, 1, 3, 9, 8), filled(r, 1, 3, 9, 5), 'k'],
    ])('%s', (_, badQ, badK, badV, argument) => {
      expectRefused(mh, () => mh.attention(badQ, badK, badV, { return: ['weights'] }), 'E_SHAPE', argument);
    });

    it('a head or a batch entry without its axes, saying the shape that it should have', () => {
      const refused = (operand: TensorLike, shape: string) =>
        expectRefused(mh, () => mh.attention(operand, k, v), 'E_SHAPE', 'q', `reshape to ${shape}`);
      refused(filled(r, 6, 8), '(1, 1, 6, 8)');
      refused(filled(r, 4, 6, 8), '(1, 4, 6, 8)');
    });

    it.each([[[6, 8]], [[5, 9]], [[9]], [[2, 1, 6, 9]], [[1, 3, 6, 9]], [[1, 2, 6, 9]]])('a mask and a bias of shape %j', (shape) => {
      const size = product(shape);
      const mask = { shape, data: new Uint8Array(size) };
      const bias = { shape, data: new Float32Array(size) };
      expectRefused(mh, () => mh.attention(q, k, v, { mask }), 'E_SHAPE', 'mask', '6', '9');
      expectRefused(mh, () => mh.attention(q, k, v, { bias }), 'E_SHAPE', 'bias', '6', '9');
    });

    it('a mask of rank 3, because its first axis may be B or H_q', () => {
      expectRefused(mh, () => mh.attention(q, k, v, { mask: ones(1, 6, 9) }), 'E_SHAPE', 'mask');
    });

    it('causal: true with other numbers of queries and keys, and says what to write', () => {
      const call = () => mh.attention(q, k, v, { causal: true });
      expectRefused(mh, call, 'E_OPTION', 'causal', /'topLeft'.*'bottomRight'/);
    });

    it.each([['left'], [{}], [{ offset: 0.5 }], [{ offset: '1' }], [null], [1]])('causal: %j', (causal) => {
      const error = expectRefused(
        mh,
        () => mh.attention(q, k, v, { causal: anything(causal) }),
        'E_OPTION',
        typeof causal === 'object' && causal !== null && 'offset' in causal ? 'causal.offset' : 'causal',
      );
      expect(error.expected).not.toBe('');
    });

    it('options that do not exist, with the ones that do', () => {
      const call = () => mh.attention(q, k, v, anything({ attn_mask: ones(6, 9) }));
      expectRefused(mh, call, 'E_OPTION', 'attn_mask', 'attn_mask', 'mask', 'bias', 'causal', 'scale', 'return', 'out');
      expectRefused(mh, () => mh.attention(q, k, v, { causal: anything({ offset: 1, align: 2 }) }), 'E_OPTION', 'align');
      expectRefused(mh, () => mh.attention(q, k, v, anything([])), 'E_OPTION', 'attention');
      expectRefused(mh, () => mh.attention(q, k, v, { return: anything(['lse', 'logits']) }), 'E_OPTION', 'return', 'logits');
      expectRefused(mh, () => mh.attention(q, k, v, { return: anything('lse') }), 'E_OPTION', 'return');
    });

    it.each([NaN, Infinity, 1e39])('scale %d', (scale) => {
      expectRefused(mh, () => mh.attention(q, k, v, { scale }), 'E_OPTION', 'scale', 'finite');
    });

    it('a scale that is not a number', () => {
      expectRefused(mh, () => mh.attention(q, k, v, { scale: anything('1') }), 'E_OPTION', 'scale');
    });

    it('number[] and other arrays in place of typed arrays', () => {
      const numbers = { shape: [1, 1, 1, 2], data: anything([1, 2]) };
      expectRefused(mh, () => mh.attention(numbers, k, v), 'E_OPTION', 'q', 'Float32Array', /number\[\]/);
      expectRefused(mh, () => mh.attention(anything([1, 2]), k, v), 'E_OPTION', 'q', 'shape');
      expectRefused(mh, () => mh.attention(q, anything(new Float32Array(8)), v), 'E_OPTION', 'k', 'no shape');
      const doubles = { shape: [1, 1, 1, 2], data: anything(new Float64Array(2)) };
      expectRefused(mh, () => mh.attention(q, k, doubles), 'E_OPTION', 'v', 'Float64Array');
      const floatMask = { shape: [6, 9], data: anything(new Float32Array(54)) };
      expectRefused(mh, () => mh.attention(q, k, v, { mask: floatMask }), 'E_OPTION', 'mask', 'Uint8Array');
    });

    it('a length of data that is not the product of the shape', () => {
      const short = { shape: [1, 4, 6, 8], data: new Float32Array(191) };
      expectRefused(mh, () => mh.attention(short, k, v), 'E_SHAPE', 'q', '192', '191');
    });

    it('disposed tensors', () => {
      const gone = mh.tensor(q.data, q.shape);
      gone.dispose();
      expectRefused(mh, () => mh.attention(gone, k, v), 'E_DISPOSED', 'q');
      const outGone = mh.zeros([1, 4, 6, 5]);
      outGone.dispose();
      expectRefused(mh, () => mh.attention(q, k, v, { out: outGone }), 'E_DISPOSED', 'out');
    });

    it('an `out` of the wrong shape, kind or owner, or that is an input', async () => {
      const other = await loadBuild(simd);
      const right = [1, 4, 6, 5];
      using foreign = other.zeros(right);
      mh.scope(() => {
        const tensor = mh.tensor(q.data, q.shape);
        const bool = mh.tensor(new Uint8Array(120), right);
        const refused = (out: unknown, code: 'E_SHAPE' | 'E_OPTION', q_: TensorLike = q) =>
          expectRefused(mh, () => mh.attention(q_, k, v, { out: anything(out) }), code, 'out');
        refused(mh.zeros([1, 4, 6, 8]), 'E_SHAPE');
        refused(bool, 'E_OPTION');
        refused(foreign, 'E_OPTION');
        refused({ shape: right, data: new Float32Array(120) }, 'E_OPTION');
        refused(tensor, 'E_OPTION', tensor);
      });
    });

    // 4·n² bytes: just below 4 GiB, and just below and above 2 GiB. All of them must reach the module's malloc(), which
    // reads sizes from 2 GiB on as negative numbers.
    it.each([32_767, 23_170, 23_171])('more weights than the memory can hold: %i tokens', (n) => {
      const long = { shape: [1, 1, n, 1], data: new Float32Array(n) };
      const call = () => mh.attention(long, long, long, { return: ['weights'] });
      for (let time = 0; time < 3; time += 1) {
        expectRefused(mh, call, 'E_MEMORY', 'weights', String(4 * n * n), 'heap');
      }
    });
  });
});
