// Compares mh.prepareBackward() with mh.attentionBackward(), bit for bit; and tests bad arguments of run().

import type { AttentionGradients, FloatDType, GradientName, MaskOptions, MultiheadErrorCode, PrepareBackwardOptions, Tensor } from 'multihead';
import { describe, expect, it } from 'vitest';
import { attentionSchema } from '../src/attention/options.ts';
import { builds, errorOf, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, product, randomCase } from './random_case.ts';

const tiny = [1, 4, 32, 16];
const zeros = (...shape: number[]) => ({ shape, data: new Float32Array(product(shape)) });

/** The numbers as bits, so that NaN equals itself and -0 differs from 0. */
const bits = (numbers: Tensor | Float32Array): Uint32Array => {
  const { buffer, byteOffset, length } = numbers instanceof Float32Array ? numbers : numbers.data;
  return new Uint32Array(buffer, byteOffset, length).slice();
};

describe.each(builds)('prepareBackward, %s', async (simd) => {
  const mh = await loadBuild(simd);

  const filled = (shape: readonly number[], seed: number): Tensor => mh.tensor(random(seed).floats(product(shape)), shape);

  /** Makes the inputs of a backward call of q, k and v with these options; they belong to the open scope. */
  function inputsOf(options: MaskOptions, shape: readonly number[] = tiny, keyShape = shape) {
    const [q, k, v] = [filled(shape, 1), filled(keyShape, 2), filled(keyShape, 3)];
    const { out, lse } = mh.attention(q, k, v, { ...options, return: ['lse'] });
    return { q, k, v, out, lse, dOut: filled(out.shape, 4) };
  }
  type Inputs = ReturnType<typeof inputsOf>;

  /** New tensors to write to, with numbers that a run must overwrite. */
  const outputsFor = ({ q, k, v }: { readonly [N in 'q' | 'k' | 'v']: { readonly shape: readonly number[] } }) => {
    const [dQ, dK, dV] = [q, k, v].map(({ shape }) => mh.tensor(new Float32Array(product(shape)).fill(7), shape));
    return { dQ, dK, dV } as Record<'dQ' | 'dK' | 'dV', Tensor>;
  };

  /** Expects a run to return the results of attentionBackward(). */
  function expectEqual(inputs: Inputs, options: MaskOptions, run: (to: ReturnType<typeof outputsFor>) => object): void {
    mh.scope(() => {
      const expected = mh.attentionBackward(inputs, { ...options, return: ['dQ', 'dK', 'dV'] });
      const outputs = outputsFor(inputs);
      run(outputs);
      for (const name of ['dQ', 'dK', 'dV'] as const) expect(bits(outputs[name]), name).toEqual(bits(expected[name]));
    });
  }

  it(`equals attentionBackward() bit for bit on random shapes and options (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(100); round += 1) {
      const c = randomCase(runSeed + round);
      const { return: _, capture: __, outDtype: ___, ...options } = { capture: 0, ...c.options };
      const r = random(runSeed + round + 1);
      mh.scope(() => {
        const [q, k, v] = [c.q, c.k, c.v].map(({ given }) => {
          const stated = 'dtype' in given && given.dtype !== undefined ? given.dtype : 'f32';
          return mh.tensor<FloatDType>(given.data, [...given.shape], { dtype: stated });
        }) as [Tensor<FloatDType>, Tensor<FloatDType>, Tensor<FloatDType>];
        const dOutDtype = r.pick(['f32', 'f16', 'bf16'] as const);
        const names: GradientName[] = ['dQ', 'dK', 'dV'];
        if (options.bias !== undefined) names.push('dBias');
        if (options.sinks !== undefined) names.push('dSinks');
        if (options.qkNorm !== undefined) names.push('dQGain', 'dKGain');
        const dBias = options.bias && mh.zeros([...options.bias.shape]);
        const op = mh.prepareBackward({
          ...options,
          ...{ q: q.shape, numKvHeads: k.shape[1], keys: k.shape[2], valueDim: v.shape[3] },
          ...{ dtype: q.dtype, kvDtype: k.dtype, outDtype: c.outDtype, dOutDtype },
          ...{ return: names, out: { dBias } },
        });
        for (let run = 0; run < 2; run += 1) {
          const { out, lse } = mh.attention(q, k, v, { ...options, outDtype: c.outDtype, return: ['lse'] });
          const numbers = mh.tensor(r.floats(product(out.shape)), out.shape);
          const dOut = mh.tensor<FloatDType>(numbers.toFloat32(), out.shape, { dtype: dOutDtype });
          const inputs = { q, k, v, out, lse, dOut };
          const expected: Partial<AttentionGradients> = mh.attentionBackward(inputs, { ...options, return: names });
          const outputs = outputsFor(inputs);
          const actual = { ...outputs, dBias, ...op.run(inputs, outputs) };
          for (const name of names) {
            const [got, wanted] = [actual[name], expected[name]] as [Tensor | Float32Array, Tensor | Float32Array];
            expect(bits(got), `${name}, ${c.label}`).toEqual(bits(wanted));
          }
          q.data.reverse();
          v.data.reverse();
        }
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('has the shapes that its runs take', () => {
    using op = mh.prepareBackward({ q: [2, 6, 5, 8], numKvHeads: 3, keys: 7, valueDim: 4 });
    expect(op.shapes).toEqual({
      ...{ q: [2, 6, 5, 8], k: [2, 3, 7, 8], v: [2, 3, 7, 4] },
      ...{ out: [2, 6, 5, 4], lse: [2, 6, 5] },
    });
  });

  it('computes the gradients that were named, and no others', () => {
    mh.scope(() => {
      const options = { sinks: new Float32Array(4), qkNorm: { qGain: new Float32Array(16).fill(1) } };
      const inputs = inputsOf(options);
      const all = outputsFor(inputs);
      const byDefault = mh.prepareBackward({ q: tiny, ...options }).run(inputs, all);
      expect(Object.keys(byDefault)).toEqual(['dSinks', 'dQGain']);
      const { dV } = outputsFor(inputs);
      const some = mh.prepareBackward({ q: tiny, ...options, return: ['dV', 'dSinks'] }).run(inputs, { dV });
      expect(Object.keys(some)).toEqual(['dSinks']);
      expect(bits(dV)).toEqual(bits(all.dV));
      expect(bits(some.dSinks as Float32Array)).toEqual(bits(byDefault.dSinks as Float32Array));
      expect(mh.prepareBackward({ q: tiny, return: [] }).run(inputsOf({}))).toEqual({});
    });
  });

  it('takes a whole result of attention()', () => {
    mh.scope(() => {
      const inputs = inputsOf({});
      const { q, k, v, dOut } = inputs;
      const result = mh.attention(q, k, v, { return: ['lse', 'weights'], capture: [{ stage: 'raw' }] });
      const op = mh.prepareBackward({ q: tiny });
      expectEqual(inputs, {}, (outputs) => op.run({ q, k, v, ...result, dOut }, outputs));
    });
  });

  it('allocates nothing in a run', () => {
    mh.scope(() => {
      const options = { causal: 'topLeft', sinks: new Float32Array(4), bias: mh.zeros([32, 32]) } as const;
      const inputs = inputsOf(options);
      const outputs = outputsFor(inputs);
      const op = mh.prepareBackward({ q: tiny, ...options, out: { dBias: mh.zeros([32, 32]) } });
      const before = mh.memory();
      for (let i = 0; i < 100; i += 1) op.run(inputs, outputs);
      expect(mh.memory()).toEqual(before);
    });
  });

  it('still runs after the memory has grown', () => {
    mh.scope(() => {
      const options = { sinks: new Float32Array(4), kvLengths: Int32Array.of(9) };
      const inputs = inputsOf(options);
      const op = mh.prepareBackward({ q: tiny, ...options });
      op.setKvLengths(Int32Array.of(8));
      const { heap } = mh.memory();
      mh.zeros([heap / 4]).dispose();
      expect(mh.memory().heap).toBeGreaterThan(heap);
      op.setKvLengths(Int32Array.of(9));
      expectEqual(inputs, options, (outputs) => op.run(inputs, outputs));
    });
  });

  it('reads a bias tensor in every run, and copies a typed array once', () => {
    mh.scope(() => {
      const shape = [1, 32];
      const data = new Float32Array(32);
      const bias = mh.tensor(data, shape);
      const live = mh.prepareBackward({ q: tiny, bias, return: ['dQ', 'dK', 'dV'] });
      const copied = mh.prepareBackward({ q: tiny, bias: { shape, data }, return: ['dQ', 'dK', 'dV'] });
      data.fill(-2, 3);
      bias.data.set(data);
      expectEqual(inputsOf({ bias }), { bias }, (outputs) => live.run(inputsOf({ bias }), outputs));
      expectEqual(inputsOf({}), {}, (outputs) => copied.run(inputsOf({}), outputs));
    });
  });

  it('runs with new lengths', () => {
    mh.scope(() => {
      const [shape, keyShape] = [
        [3, 2, 9, 16],
        [3, 2, 40, 16],
      ];
      const op = mh.prepareBackward({ q: shape, keys: 40, causal: 'bottomRightOfLength', kvLengths: Int32Array.of(40, 0, 7) });
      for (const lengths of [
        [1, 40, 40],
        [0, 0, 0],
        [9, 17, 33],
      ]) {
        const kvLengths = Int32Array.from(lengths);
        op.setKvLengths(kvLengths);
        const options = { causal: 'bottomRightOfLength', kvLengths } as const;
        const inputs = inputsOf(options, shape, keyShape);
        expectEqual(inputs, options, (outputs) => op.run(inputs, outputs));
      }
      expectRefused(mh, () => op.setKvLengths(Int32Array.of(1, 2)), 'E_SHAPE', 'kvLengths', '2 values');
    });
  });

  it('refuses the options that attentionBackward() refuses, and names them', () => {
    const refused = (options: unknown, ...expected: [MultiheadErrorCode, string, ...string[]]) =>
      expectRefused(mh, () => mh.prepareBackward(options as PrepareBackwardOptions), ...expected);
    refused({}, 'E_SHAPE', 'q', 'undefined');
    refused({ q: tiny, numKvHeads: 3 }, 'E_SHAPE', 'numKvHeads', '3', '4');
    refused({ q: tiny, outDtype: 1 }, 'E_OPTION', 'outDtype', '1');
    refused({ q: tiny, dOutDtype: 'f64' }, 'E_OPTION', 'dOutDtype', 'f64');
    refused({ q: tiny, return: ['lse'] }, 'E_OPTION', 'return', 'lse', 'dQ');
    refused({ q: tiny, return: ['dSinks'] }, 'E_OPTION', 'dSinks', 'no sinks');
    refused({ q: tiny, return: ['dQGain'], qkNorm: {} }, 'E_OPTION', 'dQGain', 'dQ with dQGain');
    refused({ q: tiny, capture: [] }, 'E_OPTION', 'capture');
    refused({ q: tiny, scale: NaN }, 'E_OPTION', 'scale', 'NaN');
    refused({ q: tiny, out: 3 }, 'E_OPTION', 'out', 'dBias');
    refused({ q: tiny, out: { dQ: 1 } }, 'E_OPTION', 'dQ', 'run()');
    refused({ q: tiny, bias: zeros(32, 32) }, 'E_OPTION', 'out.dBias', 'a tensor that every run writes to', 'undefined');
    refused({ q: tiny, bias: zeros(32, 32), out: { dBias: zeros(32, 32) } }, 'E_OPTION', 'out.dBias', 'same load()');
    refused({ q: [1, 1, 64, 2 ** 26] }, 'E_MEMORY', 'memory');
    for (const name of [...Object.keys(attentionSchema), 'return', 'out', 'dOutDtype']) {
      refused({ q: tiny, [name]: null }, 'E_OPTION', name, 'null');
    }
    mh.scope(() => {
      const [dBias, bias] = [mh.zeros([32, 31]), mh.zeros([32, 32])];
      refused({ q: tiny, bias, out: { dBias } }, 'E_SHAPE', 'out.dBias', '(32, 32)', '(32, 31)');
      refused({ q: tiny, bias, out: { dBias: bias } }, 'E_OPTION', 'out.dBias', 'same as bias');
      refused({ q: tiny, out: { dBias } }, 'E_OPTION', 'out.dBias', 'dQ, dK, dV');
    });
  });

  it('refuses tensors that do not fit, writes nothing, and then runs again', async () => {
    const other = await loadBuild(simd);
    mh.scope(() => {
      const inputs = inputsOf({});
      const outputs = outputsFor(inputs);
      const op = mh.prepareBackward({ q: tiny });
      const run = op.run.bind(op) as (...given: unknown[]) => unknown;
      const refused = (changes: object, code: string, argument: string, word: string) => {
        const error = errorOf(() => {
          const part = (whole: object) => Object.fromEntries(Object.entries({ ...whole, ...changes }).filter(([name]) => name in whole));
          run(part(inputs), part(outputs));
        });
        expect([error.code, error.argument]).toEqual([code, argument]);
        expect(error.message).toContain(word);
      };
      const [gone, wide, half] = [mh.zeros(tiny), mh.zeros([1, 4, 32, 17]), mh.zeros(tiny, { dtype: 'f16' })];
      gone.dispose();
      for (const name of ['q', 'k', 'v', 'out', 'dOut', 'dQ', 'dK', 'dV']) {
        refused({ [name]: gone }, 'E_DISPOSED', name, '(1, 4, 32, 16)');
        refused({ [name]: wide }, 'E_SHAPE', name, '(1, 4, 32, 17)');
        refused({ [name]: half }, 'E_OPTION', name, 'f16');
        refused({ [name]: undefined }, 'E_OPTION', name, 'undefined');
        refused({ [name]: zeros(...tiny) }, 'E_OPTION', name, 'Object');
        refused({ [name]: other.zeros(tiny) }, 'E_OPTION', name, 'another');
      }
      refused({ lse: wide }, 'E_SHAPE', 'lse', '(1, 4, 32)');
      for (const name of ['q', 'k', 'v', 'out', 'dOut'] as const) {
        refused({ dK: inputs[name] }, 'E_OPTION', 'dK', `same as ${name}`);
      }
      refused({ dV: outputs.dQ }, 'E_OPTION', 'dV', 'same as dQ');
      refused({ dV: outputs.dK.reshape(tiny) }, 'E_OPTION', 'dV', 'same as dK');
      expect(errorOf(() => run(undefined))).toMatchObject({ code: 'E_OPTION', argument: 'q' });
      expect(errorOf(() => run(inputs, { ...outputs, dBias: gone })).message).toContain('prepareBackward()');
      expect(errorOf(() => run({ ...inputs, x: 1 }, outputs))).toMatchObject({ argument: 'x' });
      const onlyQ = mh.prepareBackward({ q: tiny, return: ['dQ'] });
      expect(errorOf(() => onlyQ.run(inputs, outputs))).toMatchObject({ code: 'E_OPTION', argument: 'dK' });
      for (const { data } of Object.values(outputs)) expect(data.every((x) => x === 7)).toBe(true);
      expectEqual(inputs, {}, (to) => op.run(inputs, to));
    });
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('refuses to run when its bias or dBias is disposed, or is another tensor of the call', () => {
    mh.scope(() => {
      const [bias, dBias] = [filled(tiny, 4), mh.zeros(tiny)];
      const inputs = inputsOf({}, tiny, [1, 4, 16, 16]);
      const outputs = outputsFor(inputs);
      const op = mh.prepareBackward({ q: tiny, keys: 16, bias, out: { dBias } });
      expect(errorOf(() => op.run(inputs, { ...outputs, dQ: bias })).message).toContain('same as bias');
      expect(errorOf(() => op.run(inputs, { ...outputs, dQ: dBias })).message).toContain('same as out.dBias');
      expect(errorOf(() => op.run({ ...inputs, q: dBias }, outputs)).message).toContain('same as q');
      dBias.dispose();
      expect(errorOf(() => op.run(inputs, outputs))).toMatchObject({ code: 'E_DISPOSED', argument: 'out.dBias' });
      const without = mh.prepareBackward({ q: tiny, keys: 16, bias, return: ['dQ', 'dK', 'dV'] });
      bias.dispose();
      expect(errorOf(() => without.run(inputs, outputs))).toMatchObject({ code: 'E_DISPOSED', argument: 'bias' });
    });
  });

  it('refuses to run when reading its arguments disposes it or one of them', () => {
    mh.scope(() => {
      const inputs = inputsOf({});
      const outputs = outputsFor(inputs);
      const op = mh.prepareBackward({ q: tiny });
      const disposing = (object: { dispose(): void }) => ({
        ...inputs,
        get dOut() {
          object.dispose();
          return inputs.dOut;
        },
      });
      expect(errorOf(() => op.run(disposing(inputs.q), outputs))).toMatchObject({ code: 'E_DISPOSED', argument: 'q' });
      expect(errorOf(() => op.run(disposing(op), outputs))).toMatchObject({ code: 'E_DISPOSED', argument: 'prepared' });
    });
  });

  it('is disposed once, frees its memory, and then refuses to run', () => {
    mh.scope(() => {
      const inputs = inputsOf({});
      const before = mh.memory();
      const op = mh.prepareBackward({ q: tiny, sinks: new Float32Array(4) });
      expect(mh.memory()).toMatchObject({ live: before.live + 1, bytes: before.bytes + 2 * 16 });
      op.dispose();
      op[Symbol.dispose]();
      expect(op.disposed).toBe(true);
      expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
      expectRefused(mh, () => op.run(inputs, {}), 'E_DISPOSED', 'prepared');
    });
  });
});
