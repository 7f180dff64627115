import type { ForwardOptions, MultiHeadAttentionConfig, StateDict, TensorLike, TraceName, TraceStep } from 'multihead';
import { describe, expect, it } from 'vitest';
import { builds, errorOf, expectRefused, loadBuild } from './builds.ts';
import * as moduleReference from './module_reference.ts';
import { random, runSeed } from './random.ts';
import { caseCount, chance, filled, product } from './random_case.ts';
import { described, parameters, randomForward, randomModule, resolved, swapAxes } from './random_module.ts';
import * as reference from './reference.ts';

const selfSteps: TraceName[] = [
  ...(['x', 'q', 'k', 'v', 'qHeads', 'kHeads', 'vHeads', 'scores', 'scaledScores'] as const),
  ...(['maskedScores', 'weights', 'headsOut', 'merged', 'headShares', 'output'] as const),
];

/** Allowed error, as a fraction of the largest value of a step. */
const allowed = (expected: Float64Array): number => 2e-5 * expected.reduce((most, y) => (Number.isFinite(y) ? Math.max(most, Math.abs(y)) : most), 1);

describe.each(builds)('multiHeadAttention, %s', async (simd) => {
  const mh = await loadBuild(simd);

  const makeModule = (given: MultiHeadAttentionConfig, dict: StateDict) => {
    const module = mh.multiHeadAttention(given);
    module.loadStateDict(dict);
    return module;
  };
  /** A module with embedDim 8 and 2 heads. */
  const smallModule = (seed: number, more: Partial<MultiHeadAttentionConfig> = {}) => {
    const given = { embedDim: 8, numHeads: 2, ...more };
    const dict = parameters(random(seed), resolved(given));
    return { module: makeModule(given, dict), dict };
  };

  it(`agrees with float64 in every step (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(120); round += 1) {
      const r = random(runSeed + round);
      const { given, config, dict } = randomModule(r);
      const { embedDim, kdim, vdim } = config;
      const crosses = kdim !== embedDim || vdim !== embedDim || chance(r, 0.3);
      const unbatched = chance(r, 0.15);
      const [batch, queries] = [unbatched ? 1 : r.int(1, 3), r.int(1, 12)];
      const keys = crosses ? r.int(1, 12) : queries;
      const query = filled(r, batch, queries, embedDim);
      const key = crosses ? filled(r, batch, keys, kdim) : undefined;
      const value = key !== undefined && (vdim !== kdim || chance(r, 0.5)) ? filled(r, batch, keys, vdim) : undefined;
      const options = randomForward(r, config, batch, queries, keys);
      const expected = moduleReference.module({ config, dict, query, key, value, options });

      const laidOut = <X extends { shape: number[]; data: Float32Array }>(x: X) => {
        if (unbatched) return { shape: x.shape.slice(1), data: x.data };
        return config.batchFirst ? x : swapAxes(x);
      };
      const inputs = key === undefined ? laidOut(query) : { query: laidOut(query), key: laidOut(key), ...(value && { value: laidOut(value) }) };
      const label = `seed ${runSeed + round}: ${described(given)}, query (${query.shape}), ${keys} keys, ${described(options)}`;
      mh.scope(() => {
        const module = makeModule(given, dict);
        expect(module.config, label).toEqual(config);
        const result = module.forward(inputs, {
          ...(options as ForwardOptions),
          trace: true,
          return: ['weights', 'meanWeights'],
        });
        const steps = Object.entries(result.trace) as [TraceName, TraceStep][];
        const names = Object.keys(expected).filter((name) => name !== 'meanWeights');
        expect(steps.map(([name]) => name).sort(), label).toEqual(names.sort());
        for (const [name, step] of steps) {
          const wanted = expected[name] as Float64Array;
          expect(step.name).toBe(name);
          expect(product(step.shape), `${name}, ${label}`).toBe(wanted.length);
          const off = reference.maxDifference(step.data, wanted);
          expect(off, `${name}, ${label}`).toBeLessThan(allowed(wanted));
        }
        for (const name of ['weights', 'meanWeights'] as const) {
          const off = reference.maxDifference(result[name].data, expected[name]);
          expect(off, `${name}, ${label}`).toBeLessThan(2e-5);
        }
        expect(result.weights.shape).toEqual(result.trace.weights.shape.slice(unbatched ? 1 : 0));
        expect(result.meanWeights.shape.at(-1)).toBe(result.weights.shape.at(-1));

        const { shape, data } = result.trace.output;
        expect({ shape: [...result.output.shape], data: result.output.data }, label).toEqual(laidOut({ shape, data }));
        const plain = module.forward(inputs, options as ForwardOptions);
        expect(plain.trace).toBeUndefined();
        expect(plain).not.toHaveProperty('weights');
        // Without a trace the work may be split differently, but the bits are the same.
        expect(plain.output.data, label).toEqual(result.output.data);
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('takes every option of attention, to the same effect', () => {
    const r = random(6);
    const [batch, heads, tokens, headDim] = [2, 4, 9, 6];
    const every = {
      causal: 'bottomRightOfLength',
      scale: 0.3,
      window: { left: 5, right: 2 },
      mask: {
        shape: [batch, 1, 1, tokens],
        data: new Uint8Array([1, 1, 0, 1, 1, 1, 1, 1, 1, ...Array<number>(9).fill(1)]),
      },
      bias: filled(r, tokens, tokens),
      kvLengths: new Int32Array([9, 7]),
      alibi: true,
      softcap: 2,
      sinks: r.floats(heads),
      qkNorm: { qGain: r.floats(headDim), eps: 1e-5 },
      rope: {
        style: 'half',
        rotaryDim: 4,
        qPositions: Int32Array.from({ length: tokens }, (_, i) => 3 * i),
      },
      dropout: { probability: 0.2, seed: 9 },
    } satisfies ForwardOptions;
    const names = Object.keys(every) as (keyof typeof every)[];
    mh.scope(() => {
      const given = { embedDim: 16, numHeads: heads, headDim };
      const module = makeModule(given, parameters(r, resolved(given)));
      const x = filled(r, batch, tokens, 16);
      // Tests each option alone (with lengths, which some options need), and all together.
      const alone = names.map((name) => ({ kvLengths: every.kvLengths, [name]: every[name] }));
      for (const options of [...alone, every]) {
        const { trace } = module.forward(x, { ...(options as object), trace: true });
        // The heads in the trace are already normalized and rotated.
        const { qkNorm: _norm, rope: _rope, ...rest } = options as typeof every;
        const { out, weights, captures } = mh.attention(trace.qHeads, trace.kHeads, trace.vHeads, {
          ...rest,
          return: ['weights'],
          capture: [{ stage: 'raw' }, { stage: 'masked' }],
        });
        const label = Object.keys(options).join();
        // The module's heads have another memory layout, and its rows may be split differently: the last bits differ.
        expect(reference.maxDifference(trace.headsOut.data, out.data), label).toBeLessThan(1e-5);
        expect(trace.weights.data, label).toEqual(weights.data);
        expect(trace.scaledScores.data, label).toEqual(captures[0].data);
        expect(trace.maskedScores.data, label).toEqual(captures[1].data);
      }
    });
  });

  it('copies out only the requested steps, in the order of computation, as separate arrays', () => {
    const r = random(1);
    mh.scope(() => {
      const { module } = smallModule(1);
      const x = filled(r, 1, 3, 8);
      const { trace } = module.forward(x, { trace: ['weights', 'qHeads', 'xKey'] });
      expect(Object.keys(trace)).toEqual(['qHeads', 'weights']);
      expect(trace.weights.shape).toEqual([1, 2, 3, 3]);
      expect(trace.qHeads.shape).toEqual([1, 2, 3, 4]);
      expect(trace.weights.data.byteLength).toBe(trace.weights.data.buffer.byteLength);
      expect(module.forward(x, { trace: [] }).trace).toEqual({});
      expect(Object.keys(module.forward(x, { trace: true }).trace)).toEqual(selfSteps);
    });
  });

  it('has any head dim: 2 with tokens of width 3', () => {
    const x = filled(random(12), 6, 3);
    mh.scope(() => {
      for (const [numHeads, width] of [
        [2, 4],
        [3, 6],
        [4, 8],
      ] as const) {
        const { module } = smallModule(12, { embedDim: 3, numHeads, headDim: 2, outProj: false });
        expect(module.forward(x).output.shape).toEqual([6, width]);
      }
      const { module } = smallModule(13, { embedDim: 64, numHeads: 8 });
      const { output, trace } = module.forward(filled(random(13), 2, 5, 64), { trace: true });
      expect(trace.qHeads.shape).toEqual([2, 8, 5, 8]);
      expect(trace.scores.shape).toEqual([2, 8, 5, 5]);
      expect(output.shape).toEqual([2, 5, 64]);
    });
  });

  it('has an output that is the sum of headShares', () => {
    const r = random(7);
    mh.scope(() => {
      const { module } = smallModule(7, { bias: false });
      const { output, trace } = module.forward(filled(r, 1, 5, 8), { trace: ['headShares'] });
      const [first, second] = [0, 40].map((from) => trace.headShares?.data.subarray(from, from + 40));
      const sum = output.data.map((_, at) => (first?.[at] ?? NaN) + (second?.[at] ?? NaN));
      expect(reference.maxDifference(sum, output.data)).toBeLessThan(1e-6);
    });
  });

  it('copies the parameters, and returns copies', () => {
    const r = random(2);
    const given = { embedDim: 4, numHeads: 2 };
    const dict = parameters(r, resolved(given));
    const x = filled(r, 1, 2, 4);
    mh.scope(() => {
      const { shape, data } = dict['out_proj.weight'] as { shape: number[]; data: Float32Array };
      const outProj = mh.tensor(data, shape);
      const module = makeModule(given, { ...dict, 'out_proj.weight': outProj });
      const before = module.forward(x).output.data.slice();
      outProj.data.fill(0);
      outProj.dispose();
      const copy = module.stateDict();
      expect(copy).toEqual(dict);
      dict['in_proj_weight']?.data.fill(0);
      copy['in_proj_weight']?.data.fill(0);
      expect(module.forward(x).output.data).toEqual(before);
      expect(makeModule(given, module.stateDict()).forward(x).output.data).toEqual(before);
    });
  });

  it('takes half-precision parameters, which replace the earlier ones', () => {
    const r = random(8);
    mh.scope(() => {
      const { module, dict } = smallModule(8);
      const { bytes } = mh.memory();
      for (const dtype of ['f16', 'bf16'] as const) {
        const halves = Object.entries(dict).map(([name, { shape, data }]) => {
          return [name, mh.tensor(data as Float32Array, shape, { dtype })] as const;
        });
        module.loadStateDict(Object.fromEntries(halves));
        for (const [name, half] of halves) {
          expect(module.stateDict()[name]?.data, name).toEqual(half.toFloat32());
          half.dispose();
        }
        expect(module.forward(filled(r, 1, 2, 8)).output.data.every(Number.isFinite)).toBe(true);
      }
      expect(mh.memory().bytes - bytes).toBe(2 * 4 * 2 * 8);
    });
  });

  it('writes to `out`', () => {
    const r = random(9);
    mh.scope(() => {
      const { module } = smallModule(9);
      const x = mh.tensor(r.floats(16), [1, 2, 8]);
      const out = mh.zeros([1, 2, 8]);
      const { output } = module.forward(x, { out });
      expect(output).toBe(out);
      expect(out.data).toEqual(module.forward(x).output.data);
      expectRefused(mh, () => module.forward(x, { out: x }), 'E_OPTION', 'out', 'query');
      const narrow = mh.zeros([1, 2, 7]);
      expectRefused(mh, () => module.forward(x, { out: narrow }), 'E_SHAPE', 'out', '(1, 2, 8)');
    });
  });

  it('is disposed like a tensor', () => {
    const r = random(3);
    const before = mh.memory();
    const { module } = smallModule(3);
    expect(mh.memory().live).toBe(before.live + 1);
    expect(mh.memory().bytes).toBe(before.bytes + 4 * (24 * 8 + 24 + 8 * 8 + 8));
    const cache = module.createCache({ capacity: 4 });
    expect(module.disposed).toBe(false);
    module.dispose();
    module.dispose();
    module[Symbol.dispose]();
    expect(module.disposed).toBe(true);
    const x = filled(r, 1, 3, 8);
    const moduleGone = (fn: () => unknown) => expectRefused(mh, fn, 'E_DISPOSED', 'multiHeadAttention');
    moduleGone(() => module.forward(x));
    moduleGone(() => module.step(x, cache));
    moduleGone(() => module.createCache({ capacity: 4 }));
    moduleGone(() => module.stateDict());
    moduleGone(() => module.loadStateDict({}));
    cache.dispose();
    expect(mh.memory()).toMatchObject({ live: before.live, bytes: before.bytes });
  });

  it('gives empty results for an empty batch and for no tokens', () => {
    const r = random(4);
    mh.scope(() => {
      const { module } = smallModule(4);
      expect(module.forward(filled(r, 0, 3, 8)).output.shape).toEqual([0, 3, 8]);
      const { output, trace } = module.forward(filled(r, 2, 0, 8), { trace: true });
      expect(output.shape).toEqual([2, 0, 8]);
      expect(trace.scores.shape).toEqual([2, 2, 0, 0]);
    });
  });

  describe('refuses', () => {
    const make = (config: object) => () => mh.multiHeadAttention({ embedDim: 64, numHeads: 8, ...config });

    it('numHeads that does not divide embedDim, and names both and the alternatives', () => {
      expectRefused(...([mh, make({ numHeads: 7 }), 'E_OPTION', 'numHeads', '64', '7'] as const), 'use 1, 2, 4, 8, 16, 32 or 64');
      const wide = make({ embedDim: 720_720, numHeads: 17 });
      expectRefused(mh, wide, 'E_OPTION', 'numHeads', '720720', /use .{10,90} or \d+/);
      const one = make({ embedDim: 1, numHeads: 2 });
      expectRefused(mh, one, 'E_OPTION', 'numHeads', 'use 1, or');
      const groups = make({ numKvHeads: 3 });
      expectRefused(mh, groups, 'E_OPTION', 'numKvHeads', 'numHeads = 8', '1, 2, 4 or 8', '3');
    });

    it.each([0, -8, 2.5, NaN, '8', undefined])('numHeads %j', (numHeads) => {
      expectRefused(mh, make({ numHeads }), 'E_OPTION', 'numHeads', 'whole number');
    });

    it.each<[object, string, ...string[]]>([
      [{ headDim: 0 }, 'headDim', 'whole number'],
      [{ kdim: 2 ** 21 }, 'kdim', '1048576'],
      [{ bias: 1 }, 'bias', 'true or false', '1'],
      [{ outProj: false, outDim: 63 }, 'outDim', 'outProj: false'],
      [{ qkNormEps: 1e-5 }, 'qkNormEps', 'qkNorm: false'],
      [{ qkNorm: true, qkNormEps: -1 }, 'qkNormEps', '≥ 0', '-1'],
      [{ dropout: 1 }, 'dropout', '0 ≤ p < 1', '1'],
      [{ outDropout: NaN }, 'outDropout', '0 <= p < 1', 'NaN'],
      [{ softcap: -1 }, 'softcap', '0 or more, got -1'],
      [{ window: { left: -2 } }, 'window.left', '-2'],
      [{ window: { left: 2, align: 'topLeft' } }, 'align', 'each call'],
      [{ rope: { style: 'half', rotaryDim: 3 } }, 'rope.rotaryDim', '3'],
      [{ rope: { style: 'half', qPositions: new Int32Array(1) } }, 'qPositions', 'each call'],
      [{ heads: 8 }, 'heads', 'numHeads'],
      [{ weights: {} }, 'weights'],
    ])('the configuration %j', (config, argument, ...words) => {
      expectRefused(mh, make(config), 'E_OPTION', argument, ...words);
    });

    it.each([
      {},
      { outProj: false, headDim: 3 },
      { qkNorm: true, qkNormEps: 1e-4 },
      { kvLatentDim: 12, headDim: 6, ropeHeadDim: 4, rope: { style: 'half' } },
    ] as const)('nothing in the configuration of a module: %j', (options) => {
      using module = mh.multiHeadAttention({ embedDim: 16, numHeads: 4, ...options });
      using same = mh.multiHeadAttention(module.config);
      expect(same.config).toEqual(module.config);
      for (const mlp of [{}, { mlpDim: 24, activation: 'silu', gated: true }] as const) {
        const { outProj = true } = options as { outProj?: boolean };
        using block = mh.transformerBlock({ embedDim: outProj ? 16 : 12, numHeads: 4, ...options, ...mlp });
        using model = mh.transformer({ ...block.config, numLayers: 2, vocabSize: 7 });
        using again = mh.transformer(model.config);
        expect(again.config).toEqual(model.config);
      }
    });

    it('a configuration that changes after the module was made of it', () => {
      const inherited = Object.create({ style: 'half' as const }) as { style: 'half' };
      const window = { left: 3 };
      using module = mh.multiHeadAttention({ embedDim: 16, numHeads: 4, rope: inherited, window });
      window.left = -7;
      expect(module.config).toMatchObject({ rope: { style: 'half' }, window: { left: 3 } });
      using same = mh.multiHeadAttention(structuredClone(module.config));
      expect(same.config).toEqual(module.config);
    });

    it('a state dict that does not fit, with one error that names every tensor, and keeps its parameters', () => {
      const { module, dict } = smallModule(10);
      const x = filled(random(11), 1, 2, 8);
      const expected = mh.scope(() => module.forward(x).output.data.slice());
      const { in_proj_bias: _, ...missing } = dict;
      const wrong: Record<string, TensorLike> = {
        ...(missing as Record<string, TensorLike>),
        'out_proj.weight': filled(random(1), 8, 7),
        'out_proj.bias': filled(random(1), 1, 8),
        extra_weight: filled(random(1), 1),
      };
      expectRefused(
        ...([mh, () => module.loadStateDict(wrong), 'E_SHAPE', 'stateDict'] as const),
        ...[/missing: in_proj_bias \(24\)/, /unexpected: extra_weight/],
        ...[/out_proj\.weight \(8, 7\) instead of \(8, 8\)/, /out_proj\.bias \(1, 8\)/],
      );
      expectRefused(mh, () => module.loadStateDict({}), 'E_SHAPE', 'stateDict', 'in_proj_weight');
      const typed = { ...dict, in_proj_bias: [1, 2] as never };
      const at = 'stateDict["in_proj_bias"]';
      expectRefused(mh, () => module.loadStateDict(typed), 'E_OPTION', at, '{ data: typed array');
      const bool = { ...dict, in_proj_bias: { shape: [24], data: new Uint8Array(24) } as never };
      expectRefused(mh, () => module.loadStateDict(bool), 'E_OPTION', at, 'Uint8Array');
      const gone = mh.zeros([24]);
      gone.dispose();
      const disposed = { ...dict, in_proj_bias: gone };
      expectRefused(mh, () => module.loadStateDict(disposed), 'E_DISPOSED', at);
      for (const value of [null, [dict], new Float32Array(2), 'dict']) {
        const load = () => module.loadStateDict(value as never);
        expectRefused(mh, load, 'E_OPTION', 'stateDict', 'an object');
      }
      mh.scope(() => expect(module.forward(x).output.data).toEqual(expected));
      module.dispose();
    });

    it('calls before parameters are loaded', () => {
      const module = mh.multiHeadAttention({ embedDim: 8, numHeads: 2 });
      const cache = module.createCache({ capacity: 4 });
      const x = filled(random(1), 1, 2, 8);
      for (const fn of [() => module.forward(x), () => module.step(x, cache), () => module.stateDict()]) {
        expectRefused(mh, fn, 'E_OPTION', 'multiHeadAttention', 'loadStateDict()');
      }
      module.dispose();
      cache.dispose();
    });

    const x = filled(random(5), 2, 3, 8);
    const bool = (...shape: number[]) => ({ shape, data: new Uint8Array(product(shape)) });
    it.each<[string, unknown, object, string, string, ...(string | RegExp)[]]>([
      ['one axis', filled(random(5), 8), {}, 'E_SHAPE', 'query', 'rank 3', '(8)'],
      ['four axes', filled(random(5), 1, 2, 3, 8), {}, 'E_SHAPE', 'query', 'rank 3'],
      ['another width', filled(random(5), 2, 3, 7), {}, 'E_SHAPE', 'query', '8', '7'],
      ['no tensor', new Float32Array(8), {}, 'E_OPTION', 'query', 'no shape'],
      ['null', null, {}, 'E_OPTION', 'query'],
      ['a key without a query', { key: x }, {}, 'E_OPTION', 'query'],
      ['an unknown input', { query: x, keys: x }, {}, 'E_OPTION', 'keys', 'key, value'],
      ['a key of another batch', { query: x, key: filled(random(5), 1, 3, 8) }, {}, 'E_SHAPE', 'key'],
      ['an unbatched key', { query: x, key: filled(random(5), 3, 8) }, {}, 'E_SHAPE', 'key', 'rank'],
      ['a shorter value', { query: x, value: filled(random(5), 2, 2, 8) }, {}, 'E_SHAPE', 'value'],
      ['a mask of three axes', x, { mask: bool(2, 3, 3) }, 'E_SHAPE', 'mask'],
      ['a bias of another shape', x, { bias: filled(random(5), 4, 3) }, 'E_SHAPE', 'bias'],
      ['floats that block', x, { attnMaskBlocked: filled(random(5), 3, 3) }, 'E_OPTION', 'attnMaskBlocked'],
      ['a blocked mask', x, { attnMaskBlocked: bool(3, 3, 3) }, 'E_SHAPE', 'attnMaskBlocked', /B \* H/],
      ['padding', x, { keyPaddingBlocked: bool(3, 2) }, 'E_SHAPE', 'keyPaddingBlocked', '(B, N_k)'],
      ['a padding bias', x, { keyPaddingBias: filled(random(5), 2, 4) }, 'E_SHAPE', 'keyPaddingBias'],
      ['causal: 1', x, { causal: 1 }, 'E_OPTION', 'causal', /'topLeft'.*'bottomRight'/],
      ['unknown steps', x, { trace: ['attention'] }, 'E_OPTION', 'trace', 'attention', 'headShares'],
      ['one step as a string', x, { trace: 'weights' }, 'E_OPTION', 'trace'],
      ['unknown results', x, { return: ['lse'] }, 'E_OPTION', 'return', 'meanWeights'],
      ["PyTorch's names", x, { need_weights: true }, 'E_OPTION', 'need_weights', 'return'],
      ['lengths', x, { kvLengths: new Int32Array([3, 4]) }, 'E_OPTION', 'kvLengths', '3', '4'],
      ['a window', x, { window: { left: -2 } }, 'E_OPTION', 'window.left'],
      ['sinks', x, { sinks: new Float32Array(3), trace: true }, 'E_SHAPE', 'sinks', '2'],
      ['dropout', x, { dropout: { probability: 1 } }, 'E_OPTION', 'dropout.probability'],
      ['training', x, { training: 1 }, 'E_OPTION', 'training', 'true or false'],
      ['a seed', x, { dropoutSeed: -1 }, 'E_OPTION', 'dropoutSeed', 'whole number'],
      ['scales of other heads', x, { heads: { scales: new Float32Array(3) } }, 'E_SHAPE', 'heads.scales', '2'],
      ['no scales', x, { heads: { scales: new Float32Array(0) } }, 'E_SHAPE', 'heads.scales', '2'],
      ['NaN scales', x, { heads: { scales: new Float32Array(2).fill(NaN) } }, 'E_OPTION', 'heads.scales'],
      ['a temperature', x, { heads: { temperature: 0 } }, 'E_OPTION', 'heads.temperature', 'above 0'],
      ['an unknown tool', x, { heads: { mute: [1] } }, 'E_OPTION', 'mute', 'scales'],
    ])('inputs and options that do not fit: %s', (_, input, options, code, argument, ...words) => {
      const { module } = smallModule(5);
      const fn = () => module.forward(input as TensorLike, options);
      expectRefused(mh, fn, code as 'E_SHAPE', argument, ...words);
      module.dispose();
    });

    it('ALiBi together with appended keys', () => {
      const { module } = smallModule(5, { addZeroAttn: true });
      expectRefused(mh, () => module.forward(x, { alibi: true }), 'E_OPTION', 'alibi', 'appends');
      module.dispose();
    });

    it('a trace that the memory cannot hold', () => {
      const given = { embedDim: 1, numHeads: 1, bias: false };
      const module = makeModule(given, parameters(random(1), resolved(given)));
      const long = { shape: [1, 30_000, 1], data: new Float32Array(30_000) };
      const fn = () => module.forward(long, { trace: true });
      expectRefused(mh, fn, 'E_MEMORY', 'memory', 'heap');
      expect(errorOf(fn).message).toMatch('bytes');
      module.dispose();
    });
  });
});
