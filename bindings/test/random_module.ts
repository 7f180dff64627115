// Random modules with their parameters, and random calls of them. The seed alone determines each.

import type { ForwardOptions, MultiHeadAttentionConfig, PlainTensor } from 'multihead';
import type { ModuleConfig } from './module_reference.ts';
import { chance, filled, product, randomBias, randomMask } from './random_case.ts';
import type { Random } from './random.ts';

export interface RandomModule {
  readonly given: MultiHeadAttentionConfig;
  readonly config: ModuleConfig;
  readonly dict: Record<string, PlainTensor>;
}

/** Random parameters, scaled so that activations stay near 1. */
export function parameters(
  r: Random,
  config: ModuleConfig,
  separate = config.kdim !== config.embedDim || config.vdim !== config.embedDim,
): Record<string, PlainTensor> {
  const { embedDim, numHeads, headDim, numKvHeads, valueDim, kdim, vdim, outDim } = config;
  const [q, k, v] = [numHeads * headDim, numKvHeads * headDim, numKvHeads * valueDim];
  const weight = (rows: number, width: number) => {
    const { shape, data } = filled(r, rows, width);
    return { shape, data: data.map((x) => (x * 1.5) / Math.sqrt(width)) };
  };
  return {
    ...(separate
      ? {
          q_proj_weight: weight(q, embedDim),
          k_proj_weight: weight(k, kdim),
          v_proj_weight: weight(v, vdim),
        }
      : { in_proj_weight: weight(q + k + v, embedDim) }),
    ...(config.bias && { in_proj_bias: filled(r, q + k + v) }),
    ...(config.outProj && { 'out_proj.weight': weight(outDim, numHeads * valueDim) }),
    ...(config.outProj && config.bias && { 'out_proj.bias': filled(r, outDim) }),
    ...(config.addBiasKv && { bias_k: filled(r, 1, 1, k), bias_v: filled(r, 1, 1, v) }),
    ...(config.sinks && { sinks: filled(r, numHeads) }),
    ...(config.qkNorm && {
      'q_norm.weight': filled(r, headDim),
      'k_norm.weight': filled(r, headDim),
    }),
  };
}

/** The configuration with defaults filled in, independently of the package. */
export function resolved(given: MultiHeadAttentionConfig): ModuleConfig {
  const { embedDim, numHeads, headDim = embedDim / numHeads, valueDim = headDim } = given;
  const { outProj = true, outDim = embedDim } = given;
  return {
    ...{ kdim: embedDim, vdim: embedDim, numKvHeads: numHeads },
    ...{ bias: true, addBiasKv: false, addZeroAttn: false, batchFirst: true, sinks: false },
    ...{
      qkNorm: false,
      qkNormEps: 1e-6,
      softcap: 0,
      window: undefined,
      rope: undefined,
      dropout: 0,
      outDropout: 0,
    },
    ...{ kvLatentDim: 0, qLatentDim: 0, ropeHeadDim: 0, latentNormEps: 1e-6 },
    ...(given as object),
    ...{ embedDim, numHeads, headDim, valueDim, outProj },
    outDim: outProj ? outDim : numHeads * valueDim,
  } as ModuleConfig;
}

/** A random module; with `decodes`, one that supports a cache. */
export function randomModule(r: Random, decodes = false): RandomModule {
  const numKvHeads = r.int(1, 3);
  const numHeads = numKvHeads * r.pick([1, 1, 2, 4]);
  const free = chance(r, 0.4);
  const headDim = r.pick([1, 2, 3, 4, 8, 10]);
  const embedDim = free ? r.int(1, 24) : numHeads * headDim;
  const outProj = chance(r, 0.8);
  const crosses = !decodes && chance(r, 0.3);
  const qkNorm = chance(r, 0.2);
  const given: MultiHeadAttentionConfig = {
    embedDim,
    numHeads,
    ...(free && { headDim }),
    ...((numKvHeads !== numHeads || chance(r, 0.3)) && { numKvHeads }),
    ...(chance(r, 0.2) && { valueDim: r.int(1, 9) }),
    ...(crosses && { kdim: r.int(1, 20), ...(chance(r, 0.7) && { vdim: r.int(1, 20) }) }),
    ...(outProj && chance(r, 0.2) && { outDim: r.int(1, 20) }),
    ...(chance(r, 0.5) && { bias: chance(r, 0.5) }),
    ...(!outProj && { outProj }),
    ...(!decodes && chance(r, 0.2) && { addBiasKv: true }),
    ...(!decodes && chance(r, 0.2) && { addZeroAttn: true }),
    ...(chance(r, 0.3) && { batchFirst: false }),
    ...(chance(r, 0.2) && { sinks: true }),
    // A large eps prevents the norm of a short vector from amplifying rounding errors.
    ...(qkNorm && { qkNorm, qkNormEps: r.pick([0.02, 0.1]) }),
    ...(chance(r, 0.2) && { softcap: r.pick([0.5, 4]) }),
    ...(chance(r, 0.25) && {
      window: { left: r.int(0, 6), ...(chance(r, 0.5) && { right: r.int(0, 4) }) },
    }),
    ...(headDim > 1 &&
      chance(r, 0.3) && {
        rope: {
          style: r.pick(['interleaved', 'half'] as const),
          rotaryDim: 2 * r.int(1, headDim >> 1),
          ...(chance(r, 0.5) && { base: 500 }),
        },
      }),
    ...(chance(r, 0.2) && { dropout: r.pick([0.1, 0.5]) }),
  };
  const config = resolved(given);
  const dict = parameters(r, config, crosses || chance(r, 0.3));
  return { given, config, dict };
}

/** Shape of a random mask: rank 2 or 4 with shared axes, and with `flat` also PyTorch's rank 3. */
function scoresShape(r: Random, [b, h, n, m]: readonly [number, number, number, number], flat = false) {
  if (flat && chance(r, 0.4)) return [b * h, n, m];
  const shape = [b, h, n, m].map((extent) => (chance(r, 0.3) ? 1 : extent));
  return chance(r, 0.4) ? shape.slice(2) : shape;
}

export function randomForward(r: Random, config: ModuleConfig, batch: number, queries: number, keys: number): ForwardOptions {
  const { numHeads, headDim } = config;
  const scores = [batch, numHeads, queries, keys] as const;
  const inverted = (shape: number[]) => ({
    shape,
    data: Uint8Array.from({ length: product(shape) }, () => (chance(r, 0.25) ? r.int(1, 255) : 0)),
  });
  const appends = config.addBiasKv || config.addZeroAttn;
  return {
    ...(chance(r, 0.6) && {
      causal: r.pick(['topLeft', 'bottomRight', { offset: r.int(-2, 3) }] as const),
    }),
    ...(chance(r, 0.2) && { scale: r.pick([0, -0.4, 0.7]) }),
    ...(chance(r, 0.2) && { mask: randomMask(r, scoresShape(r, scores)) }),
    ...(chance(r, 0.2) && { bias: randomBias(r, scoresShape(r, scores)) }),
    ...(chance(r, 0.2) && { attnMaskBlocked: inverted(scoresShape(r, scores, true)) }),
    ...(chance(r, 0.2) && { keyPaddingBlocked: inverted([batch, keys]) }),
    ...(chance(r, 0.2) && { keyPaddingBias: randomBias(r, [batch, keys]) }),
    ...(chance(r, 0.15) && {
      kvLengths: Int32Array.from({ length: batch }, () => r.int(0, keys)),
    }),
    ...(!appends && chance(r, 0.2) && { alibi: chance(r, 0.5) || r.floats(numHeads) }),
    ...(chance(r, 0.15) && { softcap: r.pick([0.7, 5]) }),
    ...(chance(r, 0.15) && { sinks: r.floats(numHeads) }),
    ...(chance(r, 0.15) && { window: { left: r.int(0, 5) } }),
    ...(chance(r, 0.15) && { qkNorm: { qGain: r.floats(headDim), eps: 0.05 } }),
    ...(chance(r, 0.15) && { dropout: { probability: 0.3, seed: r.int(0, 99) } }),
    ...(chance(r, 0.3) && { training: true, dropoutSeed: 2n ** 40n + BigInt(r.int(0, 99)) }),
    ...(chance(r, 0.3) && {
      heads: {
        ...(chance(r, 0.5) && { scales: r.floats(numHeads).map((x) => (x < -0.5 ? 0 : x)) }),
        ...(chance(r, 0.3) && { skipOutProj: true }),
        ...(chance(r, 0.5) && { temperature: r.pick([0.5, 2]) }),
        ...(chance(r, 0.3) && { scaleByEmbedDim: true }),
      },
    }),
  };
}

/** (first, second, width) → (second, first, width). */
export function swapAxes<T extends { shape: readonly number[]; data: Float32Array }>(x: T) {
  const [first = 0, second = 0, width = 0] = x.shape;
  const data = new Float32Array(x.data.length);
  for (let i = 0; i < first; i += 1) {
    for (let j = 0; j < second; j += 1) {
      const from = (i * second + j) * width;
      data.set(x.data.subarray(from, from + width), (j * first + i) * width);
    }
  }
  return { shape: [second, first, width], data };
}

/** The options of a case as text, without their data, for its label. */
export const described = (value: unknown): string =>
  JSON.stringify(value, (name, each: unknown) => {
    if (typeof each === 'bigint') return `${each}n`;
    return name === 'data' ? '…' : each;
  });
