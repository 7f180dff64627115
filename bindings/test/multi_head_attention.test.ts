import type {
  MaskOptions,
  MultiHeadAttentionConfig,
  Multihead,
  TensorLike,
  TraceName,
} from 'multihead';
import { beforeAll, describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed, type Random } from './random.ts';
import { caseCount, filled, product } from './random_case.ts';
import * as reference from './reference.ts';

const traceOrder: TraceName[] = [
  ...(['x', 'q', 'k', 'v', 'qHeads', 'kHeads', 'vHeads', 'scores', 'scaledScores'] as const),
  ...(['maskedScores', 'weights', 'headsOut', 'merged', 'output'] as const),
];

interface Options {
  readonly bias?: boolean;
  readonly outProj?: boolean;
  readonly headDim?: number | undefined;
}

function layerConfig(r: Random, embedDim: number, numHeads: number, options: Options = {}) {
  const { bias = true, outProj = true, headDim } = options;
  const merged = numHeads * (headDim ?? embedDim / numHeads);
  return {
    embedDim,
    numHeads,
    headDim,
    weights: {
      qProj: filled(r, merged, embedDim),
      kProj: filled(r, merged, embedDim),
      vProj: filled(r, merged, embedDim),
      ...(outProj ? { outProj: filled(r, embedDim, merged) } : {}),
      ...(bias
        ? { qBias: filled(r, merged), kBias: filled(r, merged), vBias: filled(r, merged) }
        : {}),
      ...(bias && outProj ? { outBias: filled(r, embedDim) } : {}),
    },
  };
}

/** (B, N, H·d) ↔ (B, H, N, d): swaps the two middle axes of (B, first, second, d). */
function swapMiddle(data: ArrayLike<number>, shape: readonly [number, number, number, number]) {
  const [batch, first, second, width] = shape;
  const result = new Float64Array(data.length);
  for (let b = 0; b < batch; b += 1) {
    for (let i = 0; i < first; i += 1) {
      for (let j = 0; j < second; j += 1) {
        for (let d = 0; d < width; d += 1) {
          const from = ((b * first + i) * second + j) * width + d;
          result[((b * second + j) * first + i) * width + d] = data[from] as number;
        }
      }
    }
  }
  return result;
}

/** Every step in float64. */
function referenceForward(
  config: ReturnType<typeof layerConfig>,
  x: { shape: number[]; data: Float32Array },
  options: reference.ReferenceOptions,
): Record<TraceName, Float64Array> {
  const { numHeads, weights } = config;
  const [batch = 0, tokens = 0] = x.shape;
  const merged = weights.qProj.shape[0] as number;
  const headDim = merged / numHeads;
  const split = (rows: Float64Array) => swapMiddle(rows, [batch, tokens, numHeads, headDim]);
  const q = reference.linear(x, weights.qProj, weights.qBias);
  const k = reference.linear(x, weights.kProj, weights.kBias);
  const v = reference.linear(x, weights.vProj, weights.vBias);
  const shape = [batch, numHeads, tokens, headDim];
  const [qHeads, kHeads, vHeads] = [split(q), split(k), split(v)];
  const { out, ...scores } = reference.attention(
    { shape, data: qHeads },
    { shape, data: kHeads },
    { shape, data: vHeads },
    options,
  );
  const heads = swapMiddle(out, [batch, numHeads, tokens, headDim]);
  const output = weights.outProj
    ? reference.linear(
        { shape: [batch, tokens, merged], data: heads },
        weights.outProj,
        weights.outBias,
      )
    : heads;
  return {
    ...{ x: Float64Array.from(x.data), q, k, v, qHeads, kHeads, vHeads },
    scores: scores.scores,
    scaledScores: scores.raw,
    maskedScores: scores.masked,
    weights: scores.weights,
    ...{ headsOut: out, merged: heads, output },
  };
}

describe.each(builds)('multiHeadAttention, %s', (simd) => {
  let mh: Multihead;
  beforeAll(async () => {
    mh = await loadBuild(simd);
  });

  it(`agrees with float64 in every step (MULTIHEAD_SEED=${runSeed})`, { timeout: 0 }, () => {
    for (let round = 0; round < caseCount(40); round += 1) {
      const r = random(runSeed + round);
      const numHeads = r.pick([1, 2, 4]);
      const embedDim = numHeads * r.pick([1, 3, 8]);
      const config = layerConfig(r, embedDim, numHeads, {
        bias: r.next() < 0.5,
        outProj: r.next() < 0.7,
        headDim: r.next() < 0.3 ? r.int(1, 9) : undefined,
      });
      const [batch, tokens] = [r.int(1, 3), r.int(1, 20)];
      const x = filled(r, batch, tokens, embedDim);
      const options: reference.ReferenceOptions = {
        causal: r.pick([false, 'topLeft', 'bottomRight', { offset: -1 }] as const),
        ...(r.next() < 0.3 ? { scale: r.pick([0, -0.2, 0.5]) } : {}),
        ...(r.next() < 0.3 ? { bias: filled(r, tokens, tokens) } : {}),
        ...(r.next() < 0.3
          ? {
              mask: {
                shape: [batch, 1, 1, tokens],
                data: new Uint8Array(batch * tokens).map(() => r.int(0, 1)),
              },
            }
          : {}),
      };
      const expected = referenceForward(config, x, options);
      mh.scope(() => {
        const layer = mh.multiHeadAttention(config);
        const { output, trace } = layer.forward(x, { ...(options as object), trace: true });
        expect(Object.keys(trace)).toEqual(traceOrder);
        for (const name of traceOrder) {
          const label = `${name}, seed ${runSeed + round}: x (${x.shape}), ${numHeads} heads`;
          expect(trace[name].name).toBe(name);
          expect(product(trace[name].shape), label).toBe(expected[name].length);
          const size = Math.max(
            1,
            ...Array.from(expected[name], (y) => (Number.isFinite(y) ? Math.abs(y) : 0)),
          );
          expect(reference.maxDifference(trace[name].data, expected[name]), label).toBeLessThan(
            2e-5 * size,
          );
        }
        expect(output.shape).toEqual(trace.output.shape);
        expect(output.data).toEqual(trace.output.data);
        const plain = layer.forward(x, options as object);
        expect(plain.trace).toBeUndefined();
        expect(plain.output.data).toEqual(output.data);
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
        data: new Uint8Array([1, 1, 0, 1, 1, 1, 1, 1, 1, ...Array(9).fill(1)]),
      },
      bias: filled(r, tokens, tokens),
      kvLengths: new Int32Array([9, 7]),
      alibi: true,
      softcap: 2,
      sinks: r.floats(heads),
      qkNorm: { qGain: r.floats(headDim), epsilon: 1e-5 },
      rope: {
        style: 'half',
        rotaryDim: 4,
        qPositions: Int32Array.from({ length: tokens }, (_, i) => 3 * i),
      },
      dropout: { probability: 0.2, seed: 9 },
    } satisfies MaskOptions;
    const names = Object.keys(every) as (keyof MaskOptions)[];
    mh.scope(() => {
      const layer = mh.multiHeadAttention(layerConfig(r, 16, heads, { headDim }));
      const x = filled(r, batch, tokens, 16);
      // Each option alone (what needs lengths with them), and all together.
      const alone = names.map((name) => ({ kvLengths: every.kvLengths, [name]: every[name] }));
      for (const options of [...alone, every]) {
        const { trace } = layer.forward(x, { ...(options as object), trace: true });
        // The traced heads are normalised and rotated already.
        const { qkNorm: _norm, rope: _rope, ...rest } = options as MaskOptions;
        const { out, weights, captures } = mh.attention(trace.qHeads, trace.kHeads, trace.vHeads, {
          ...rest,
          return: ['weights'],
          capture: [{ stage: 'raw' }, { stage: 'masked' }],
        });
        const label = Object.keys(options).join();
        // Heads lie otherwise in the layer, and few rows may be cut otherwise: the last bits differ.
        const difference = Math.max(...out.data.map((value, i) => Math.abs(value - (trace.headsOut.data[i] ?? NaN))));
        expect(difference, label).toBeLessThan(1e-5);
        expect(trace.weights.data, label).toEqual(weights.data);
        expect(trace.scaledScores.data, label).toEqual(captures[0].data);
        expect(trace.maskedScores.data, label).toEqual(captures[1].data);
      }
    });
  });

  it('copies out only the steps asked for, as arrays of their own', () => {
    const r = random(1);
    mh.scope(() => {
      const layer = mh.multiHeadAttention(layerConfig(r, 8, 2));
      const { trace } = layer.forward(filled(r, 1, 3, 8), { trace: ['weights', 'qHeads'] });
      expect(Object.keys(trace).sort()).toEqual(['qHeads', 'weights']);
      expect(trace.weights.shape).toEqual([1, 2, 3, 3]);
      expect(trace.qHeads.shape).toEqual([1, 2, 3, 4]);
      expect(trace.weights.data.byteLength).toBe(trace.weights.data.buffer.byteLength);
      expect(layer.forward(filled(r, 1, 3, 8), { trace: [] }).trace).toEqual({});
    });
  });

  it('keeps its own copy of the weights', () => {
    const r = random(2);
    const config = layerConfig(r, 4, 2);
    const x = filled(r, 1, 2, 4);
    const expected = referenceForward(config, x, {}).output;
    mh.scope(() => {
      const { shape, data } = config.weights.qProj;
      const qProj = mh.tensor(shape, data);
      const layer = mh.multiHeadAttention({ ...config, weights: { ...config.weights, qProj } });
      qProj.data.fill(0);
      qProj.dispose();
      config.weights.kProj.data.fill(0);
      expect(reference.maxDifference(layer.forward(x).output.data, expected)).toBeLessThan(2e-5);
    });
  });

  it('is disposed like a tensor', () => {
    const r = random(3);
    const before = mh.memory();
    const layer = mh.multiHeadAttention(layerConfig(r, 8, 2));
    expect(mh.memory().live).toBe(before.live + 8);
    expect(layer.disposed).toBe(false);
    layer.dispose();
    layer.dispose();
    layer[Symbol.dispose]();
    expect(layer.disposed).toBe(true);
    expect(mh.memory().live).toBe(before.live);
    expectRefused(mh, () => layer.forward(filled(r, 1, 3, 8)), 'E_DISPOSED', 'multiHeadAttention');
  });

  it('gives empty results for an empty batch and for no tokens', () => {
    const r = random(4);
    mh.scope(() => {
      const layer = mh.multiHeadAttention(layerConfig(r, 8, 2));
      expect(layer.forward(filled(r, 0, 3, 8)).output.shape).toEqual([0, 3, 8]);
      const { output, trace } = layer.forward(filled(r, 2, 0, 8), { trace: true });
      expect(output.shape).toEqual([2, 0, 8]);
      expect(trace.scores.shape).toEqual([2, 2, 0, 0]);
    });
  });

  describe('refuses', () => {
    const r = random(5);
    const make = (config: Partial<MultiHeadAttentionConfig>) => () =>
      mh.multiHeadAttention({ ...layerConfig(r, 64, 8), ...config });

    it('heads that do not divide the width, naming both and the choices', () => {
      expectRefused(
        mh,
        make({ numHeads: 7 }),
        'E_OPTION',
        'numHeads',
        '64',
        '7',
        'use 1, 2, 4, 8, 16, 32 or 64',
      );
      expectRefused(
        mh,
        make({ embedDim: 720_720, numHeads: 17 }),
        'E_OPTION',
        'numHeads',
        '720720',
        /use .{10,90} or \d+/,
      );
      expectRefused(mh, make({ embedDim: 1, numHeads: 2 }), 'E_OPTION', 'numHeads', 'use 1, or');
    });

    it.each([0, -8, 2.5, NaN, '8', undefined])('numHeads %j', (numHeads) => {
      expectRefused(
        mh,
        make({ numHeads: numHeads as number }),
        'E_OPTION',
        'numHeads',
        'whole number',
      );
    });

    it('weights of the wrong shape, or missing, or unknown', () => {
      const { weights } = layerConfig(r, 64, 8);
      const wrong = (changes: object) => make({ weights: { ...weights, ...changes } });
      expectRefused(
        mh,
        wrong({ kProj: filled(r, 64, 32) }),
        'E_SHAPE',
        'weights.kProj',
        '(64, 64)',
        '(64, 32)',
      );
      expectRefused(
        mh,
        wrong({ outBias: filled(r, 63) }),
        'E_SHAPE',
        'weights.outBias',
        '64',
        '63',
      );
      expectRefused(mh, wrong({ vProj: undefined }), 'E_OPTION', 'weights.vProj', '(64, 64)');
      expectRefused(mh, wrong({ outProj: undefined }), 'E_OPTION', 'weights.outBias', 'outProj');
      expectRefused(mh, wrong({ inProj: weights.qProj }), 'E_OPTION', 'inProj', 'qProj');
      expectRefused(mh, wrong({ qBias: [1, 2] }), 'E_OPTION', 'weights.qBias', 'number[]');
      expectRefused(mh, make({ weights: undefined as never }), 'E_OPTION', 'weights');
      expectRefused(mh, make({ heads: 8 } as never), 'E_OPTION', 'heads', 'numHeads');
    });

    it('inputs and options that do not fit', () => {
      const layer = mh.multiHeadAttention(layerConfig(r, 8, 2));
      const x = filled(r, 2, 3, 8);
      const forward = (input: TensorLike, options?: object) => () => layer.forward(input, options);
      expectRefused(mh, forward(filled(r, 3, 8)), 'E_SHAPE', 'x', '(B, N, embedDim)', '(3, 8)');
      expectRefused(mh, forward(filled(r, 2, 3, 7)), 'E_SHAPE', 'x', '8', '7');
      expectRefused(
        mh,
        forward(x, { mask: { shape: [2, 3, 3], data: new Uint8Array(18) } }),
        'E_SHAPE',
        'mask',
      );
      expectRefused(mh, forward(x, { bias: filled(r, 4, 3) }), 'E_SHAPE', 'bias');
      expectRefused(
        mh,
        forward(x, { causal: true }),
        'E_OPTION',
        'causal',
        /'topLeft'.*'bottomRight'/,
      );
      expectRefused(
        mh,
        forward(x, { trace: ['attention'] }),
        'E_OPTION',
        'trace',
        'attention',
        'headsOut',
      );
      expectRefused(mh, forward(x, { trace: 'weights' }), 'E_OPTION', 'trace');
      expectRefused(mh, forward(x, { need_weights: true }), 'E_OPTION', 'need_weights', 'trace');
      const lengths = { kvLengths: new Int32Array([3, 4]) };
      expectRefused(mh, forward(x, lengths), 'E_OPTION', 'kvLengths', '3', '4');
      expectRefused(mh, forward(x, { window: { left: -2 } }), 'E_OPTION', 'window.left');
      const sinks = new Float32Array(3);
      expectRefused(mh, forward(x, { sinks, trace: true }), 'E_SHAPE', 'sinks', '2');
      const dropout = { probability: 1 };
      expectRefused(mh, forward(x, { dropout }), 'E_OPTION', 'dropout.probability');
      layer.dispose();
    });

    it('a trace that the memory cannot hold', () => {
      const layer = mh.multiHeadAttention(layerConfig(r, 1, 1));
      const x = { shape: [1, 30_000, 1], data: new Float32Array(30_000) };
      expectRefused(
        mh,
        () => layer.forward(x, { trace: true }),
        'E_MEMORY',
        'scratch memory',
        'heap',
      );
      layer.dispose();
    });
  });
});
