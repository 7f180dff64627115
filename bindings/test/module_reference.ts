// Computes every step of the multi-head attention module in float64, from SEMANTICS and with reference.ts.

import type { ForwardOptions, MultiHeadAttention, PlainTensor, RopeRotation, TraceName, Window } from 'multihead';
import * as reference from './reference.ts';
import { product } from './random_case.ts';

export type ModuleConfig = MultiHeadAttention['config'];
type Shape4 = readonly [number, number, number, number];

/** (B, N, H·d) ↔ (B, H, N, d): swaps the two middle axes of (B, first, second, d). */
export function swapMiddle<A extends Float32Array | Float64Array>(data: A, [batch, first, second, width]: Shape4): A {
  const result = data.slice() as A;
  for (let row = 0; row < batch * first * second; row += 1) {
    const [b, i, j] = [Math.floor(row / (first * second)), Math.floor(row / second) % first, row % second];
    const to = ((b * second + j) * first + i) * width;
    result.set(data.subarray(row * width, (row + 1) * width), to);
  }
  return result;
}

/** Rows `first` to first + count − 1 of a parameter; undefined if there is no such parameter. */
function rows(tensor: PlainTensor | undefined, first: number, count: number): reference.Plain | undefined {
  if (tensor === undefined) return undefined;
  const width = product(tensor.shape.slice(1));
  const data = tensor.data.subarray(first * width, (first + count) * width);
  return { shape: [count, ...tensor.shape.slice(1)], data };
}

/** Inputs are batch-first, (B, N, width). Options of a call; PyTorch's mask may be (B · H, N_q, N_k). */
export interface ModuleCase {
  readonly config: ModuleConfig;
  readonly dict: Readonly<Record<string, PlainTensor>>;
  readonly query: reference.Plain;
  readonly key?: reference.Plain | undefined;
  readonly value?: reference.Plain | undefined;
  readonly options: ForwardOptions;
}

export type ModuleSteps = Partial<Record<TraceName, Float64Array>> & Record<'weights' | 'meanWeights' | 'output', Float64Array>;

export function module({ config, dict, query, key, value, options }: ModuleCase): ModuleSteps {
  const { numHeads: heads, numKvHeads, headDim, valueDim } = config;
  const [batch = 0, queries = 0] = query.shape;
  const keys = (key ?? query).shape[1] as number;
  const [qWidth, kWidth, vWidth] = [heads * headDim, numKvHeads * headDim, numKvHeads * valueDim];
  const [fused, bias] = [dict['in_proj_weight'], dict['in_proj_bias']];
  const project = (x: reference.Plain, name: string, first: number, count: number) =>
    reference.linear(x, (fused ? rows(fused, first, count) : dict[name]) as reference.Plain, rows(bias, first, count));
  const q = project(query, 'q_proj_weight', 0, qWidth);
  const k = project(key ?? query, 'k_proj_weight', qWidth, kWidth);
  const v = project(value ?? key ?? query, 'v_proj_weight', qWidth + kWidth, vWidth);

  // An option of the call overrides the module's.
  const window: Window | undefined = options.window ?? config.window;
  const rope: RopeRotation | undefined = options.rope ?? config.rope;
  const qkNorm =
    options.qkNorm ??
    (config.qkNorm
      ? {
          qGain: dict['q_norm.weight']?.data as Float32Array,
          kGain: dict['k_norm.weight']?.data as Float32Array,
          eps: config.qkNormEps,
        }
      : undefined);
  const position = { ...options, window, mask: undefined, bias: undefined };
  const first = (b: number) => reference.firstPosition(position, queries, keys, b);
  const split = (data: Float64Array, tokens: number, count: number, width: number) => ({
    shape: [batch, count, tokens, width],
    data: swapMiddle(data, [batch, tokens, count, width]),
  });
  const prepared = (x: reference.Plain, of: 'q' | 'k') =>
    reference.prepared(
      x,
      qkNorm,
      of === 'q' ? qkNorm?.qGain : qkNorm?.kGain,
      rope,
      of === 'q' ? options.rope?.qPositions : options.rope?.kPositions,
      of === 'q' ? first : () => 0,
    );
  const qHeads = split(q, queries, heads, headDim);
  const kHeads = split(k, keys, numKvHeads, headDim);
  const vHeads = split(v, keys, numKvHeads, valueDim);
  const appended = [...(config.addBiasKv ? [[dict['bias_k'], dict['bias_v']]] : []), ...(config.addZeroAttn ? [[undefined, undefined]] : [])];
  const all = keys + appended.length;
  const extended = (x: reference.Plain, which: 0 | 1): reference.Plain => {
    const [, count = 0, , width = 0] = x.shape;
    const data = new Float64Array(batch * count * all * width);
    for (let row = 0; row < batch * count; row += 1) {
      data.set(Array.from(x.data).slice(row * keys * width, (row + 1) * keys * width), row * all * width);
      appended.forEach((parameters, index) => {
        const from = (row % count) * width;
        const extra = parameters[which]?.data.subarray(from, from + width) ?? [];
        data.set(extra, (row * all + keys + index) * width);
      });
    }
    return { shape: [batch, count, all, width], data };
  };
  const query4 = { shape: qHeads.shape, data: prepared(qHeads, 'q') };
  const preparedKeys = prepared(kHeads, 'k');
  // Restores keys beyond the lengths, which are neither normalized nor rotated.
  options.kvLengths?.forEach((length, b) => {
    for (let row = b * numKvHeads * keys; row < (b + 1) * numKvHeads * keys; row += 1) {
      if (row % keys < length) continue;
      const from = row * headDim;
      preparedKeys.set(kHeads.data.subarray(from, from + headDim), from);
    }
  });
  const key4 = extended({ shape: kHeads.shape, data: preparedKeys }, 0);
  const value4 = extended(vHeads, 1);

  const { mask, bias: scoreBias } = masks({ options, window, batch, heads, queries, keys, all });
  const { scaleByEmbedDim = false, temperature = 1, scales, skipOutProj } = options.heads ?? {};
  const natural = 1 / Math.sqrt(scaleByEmbedDim ? config.embedDim : headDim);
  const dropout = options.dropout ?? (options.training ? { probability: config.dropout, seed: options.dropoutSeed ?? 0 } : undefined);
  const attended = reference.attention(query4, key4, value4, {
    scale: (options.scale ?? natural) / Math.fround(temperature),
    softcap: options.softcap || config.softcap,
    sinks: options.sinks ?? (dict['sinks']?.data as Float32Array | undefined),
    alibi: options.alibi,
    dropout,
    mask,
    bias: scoreBias,
    // With appended keys, the mask already includes the lengths.
    kvLengths: appended.length === 0 ? options.kvLengths : undefined,
  });

  const merged = swapMiddle(attended.out, [batch, heads, queries, valueDim]);
  merged.forEach((each, at) => {
    const factor = scales?.[Math.floor(at / valueDim) % heads] ?? 1;
    merged[at] = each * factor;
  });
  const mergedRows = { shape: [batch, queries, heads * valueDim], data: merged };
  const outProj = skipOutProj ? undefined : dict['out_proj.weight'];
  const output = outProj ? reference.linear(mergedRows, outProj, dict['out_proj.bias']) : merged;

  const meanWeights = new Float64Array(batch * queries * all);
  attended.weights.forEach((weight, at) => {
    const [b, row] = [Math.floor(at / (heads * queries * all)), at % (queries * all)];
    const to = b * queries * all + row;
    meanWeights[to] = (meanWeights[to] as number) + weight / heads;
  });
  const steps: ModuleSteps = {
    ...{ x: Float64Array.from(query.data), q, k, v },
    ...{
      qHeads: query4.data,
      kHeads: key4.data as Float64Array,
      vHeads: value4.data as Float64Array,
    },
    scores: attended.scores.map((score, at) => (attended.raw[at] === -Infinity ? -Infinity : score)),
    scaledScores: attended.raw,
    maskedScores: attended.masked,
    weights: attended.weights,
    meanWeights,
    headsOut: attended.out,
    ...{ merged, output },
  };
  if (key !== undefined) {
    steps.xKey = Float64Array.from(key.data);
    steps.xValue = Float64Array.from((value ?? key).data);
  }
  if (outProj) steps.headShares = headShares(mergedRows, outProj, heads);
  return steps;
}

/** Computes the output of each head alone: z_h·W_Oʰ. */
function headShares(merged: reference.Plain, outProj: reference.Plain, heads: number): Float64Array {
  const [batch = 0, queries = 0, wide = 0] = merged.shape;
  const out = outProj.shape[0] as number;
  const shares = new Float64Array(batch * heads * queries * out);
  for (let h = 0; h < heads; h += 1) {
    const alone = Array.from(merged.data, (each, at) => (Math.floor((at % wide) / (wide / heads)) === h ? each : 0));
    const share = reference.linear({ shape: merged.shape, data: alone }, outProj);
    for (let b = 0; b < batch; b += 1) {
      const from = b * queries * out;
      shares.set(share.subarray(from, from + queries * out), (b * heads + h) * queries * out);
    }
  }
  return shares;
}

interface Extents {
  readonly options: ForwardOptions;
  readonly window: Window | undefined;
  readonly batch: number;
  readonly heads: number;
  readonly queries: number;
  readonly keys: number;
  /** Number of keys including the appended ones, which every query sees and which have no bias. */
  readonly all: number;
}

/** Combines all masks and biases of the call into one mask and one bias (B, H, N_q, N). */
function masks({ options, window, batch, heads, queries, keys, all }: Extents) {
  // With scores of 0, the masked scores of attention() are its combined mask and bias.
  const empty = (count: number) => ({ shape: [batch, heads, count, 0], data: [] });
  const { causal, kvLengths, mask, bias } = options;
  const { masked } = reference.attention(empty(queries), empty(keys), empty(keys), {
    ...{ scale: 1, causal, window, kvLengths },
    mask: mask as reference.Plain | undefined,
    bias: bias as reference.Plain | undefined,
  });
  const { attnMaskBlocked, keyPaddingBlocked, keyPaddingBias } = options;
  const shape = [batch, heads, queries, all];
  const seen = { shape, data: new Uint8Array(product(shape)).fill(1) };
  const added = { shape, data: new Float64Array(product(shape)) };
  for (let row = 0; row < batch * heads * queries; row += 1) {
    const [b, h, i] = [Math.floor(row / (heads * queries)), Math.floor(row / queries) % heads, row % queries];
    for (let j = 0; j < keys; j += 1) {
      const score = masked[row * keys + j] as number;
      const blocked = attnMaskBlocked !== undefined && blockedAt(attnMaskBlocked, heads, b, h, i, j);
      const padded = keyPaddingBlocked?.data[b * keys + j];
      const extra = (keyPaddingBias?.data[b * keys + j] as number | undefined) ?? 0;
      const hidden = score === -Infinity || blocked || padded || extra === -Infinity;
      seen.data[row * all + j] = hidden ? 0 : 1;
      added.data[row * all + j] = hidden ? 0 : score + extra;
    }
  }
  return { mask: seen, bias: added };
}

/** Index into (N_q, N_k), (B, H, N_q, N_k) with extents of 1, or (B · H, N_q, N_k). */
function blockedAt(
  { shape, data }: { shape: readonly number[]; data: ArrayLike<number> },
  heads: number,
  b: number,
  h: number,
  i: number,
  j: number,
): boolean {
  const flat = shape.length === 3;
  const full = flat ? [...shape] : [...Array<number>(4 - shape.length).fill(1), ...shape];
  const place = flat ? [b * heads + h, i, j] : [b, h, i, j];
  const index = full.reduce((sum, extent, axis) => {
    return sum * extent + (extent === 1 ? 0 : (place[axis] as number));
  }, 0);
  return data[index] !== 0;
}
