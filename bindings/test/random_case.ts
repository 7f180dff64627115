// Random calls with combinations of options, for the suites that compare with float64. The seed alone determines a
// case.

import type { Alignment, AttentionOptions, Capture, FloatDType, FloatTensorLike, MaskOptions, ScoreStage } from 'multihead';
import { encode, round } from './half_reference.ts';
import { random, type Random } from './random.ts';
import type { Plain, ReferenceOptions, ReferenceResult } from './reference.ts';

/** Number of cases of attention()'s suite, the largest; MULTIHEAD_RANDOM_CASES=20000 npm test runs more. */
export const usualCases = 300;

/** Number of cases of a suite that usually has `usual`; MULTIHEAD_RANDOM_CASES scales all suites alike. */
export function caseCount(usual: number): number {
  const asked = Number(process.env['MULTIHEAD_RANDOM_CASES'] ?? usualCases);
  return Math.ceil((usual * asked) / usualCases);
}

export const product = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1);
export const filled = (r: Random, ...shape: number[]) => ({
  shape,
  data: r.floats(product(shape)),
});

/** An argument of a call, and the numbers that it represents. */
export interface Stored {
  readonly given: FloatTensorLike;
  readonly plain: Plain;
}

export function stored(dtype: FloatDType, shape: number[], numbers: Float32Array): Stored {
  if (dtype === 'f32') return { given: { shape, data: numbers }, plain: { shape, data: numbers } };
  const data = Uint16Array.from(numbers, (number) => encode(number, dtype));
  const rounded = Float64Array.from(numbers, (number) => round(number, dtype));
  return { given: { shape, data, dtype }, plain: { shape, data: rounded } };
}

export const chance = (r: Random, probability: number): boolean => r.next() < probability;

const randomDType = (r: Random): FloatDType => r.pick<FloatDType>(['f32', 'f32', 'f16', 'bf16']);

/** A shape that broadcasts to (b, h, n, m): rank 2, or rank 4 with some extents 1. */
function maskShape(r: Random, full: readonly number[]): number[] {
  const shape = full.map((extent) => (chance(r, 0.4) ? 1 : extent));
  return chance(r, 0.4) ? shape.slice(2) : shape;
}

export function randomMask(r: Random, shape: number[]) {
  const density = r.pick([0.2, 0.7, 0.9]);
  const data = Uint8Array.from({ length: product(shape) }, () => (chance(r, density) ? r.int(1, 255) : 0));
  return { shape, data };
}

export function randomBias(r: Random, shape: number[]) {
  const { data } = filled(r, ...shape);
  const hidden = r.pick([0, 0.2]);
  return { shape, data: data.map((x) => (chance(r, hidden) ? -Infinity : 2 * x)) };
}

type Extents = readonly [batch: number, heads: number, queries: number, keys: number];

function randomAlignment(r: Random, [, , queries, keys]: Extents, lengths: boolean): Alignment {
  return r.pick<Alignment>(['topLeft', 'bottomRight', { offset: r.int(-queries - 1, keys + 1) }, lengths ? 'bottomRightOfLength' : 'topLeft']);
}

/** Random causal, window and kvLengths options. */
function randomOrder(r: Random, extents: Extents): Pick<MaskOptions, 'causal' | 'window' | 'kvLengths'> {
  const [batch, , , keys] = extents;
  const lengths = chance(r, 0.3) ? Int32Array.from({ length: batch }, () => r.int(0, keys)) : undefined;
  const alignment = () => randomAlignment(r, extents, lengths !== undefined);
  const causal = chance(r, 0.5) ? alignment() : false;
  const side = () => (chance(r, 0.4) ? -1 : r.int(0, chance(r, 0.5) ? 6 : keys + 2));
  const sides = { left: side(), right: side() };
  const given = sides.left >= 0 || sides.right >= 0;
  // In a causal call the window may only state the same alignment.
  const align = given && chance(r, 0.6) ? { align: causal === false ? alignment() : causal } : {};
  return {
    causal,
    ...(lengths === undefined ? {} : { kvLengths: lengths }),
    ...(chance(r, 0.4) ? { window: { ...sides, ...align } } : {}),
  };
}

function randomRope(r: Random, [batch, , queries, keys]: Extents, width: number) {
  const positions = (count: number) => {
    const high = r.pick([20, 5000, 200_000]);
    const length = chance(r, 0.5) ? count : batch * count;
    return Int32Array.from({ length }, () => r.int(-20, high));
  };
  return {
    style: r.pick(['interleaved', 'half'] as const),
    ...(chance(r, 0.5) ? { base: r.pick([100, 500_000]) } : {}),
    ...(width % 2 === 1 || chance(r, 0.4) ? { rotaryDim: 2 * r.int(1, width >> 1) } : {}),
    ...(chance(r, 0.4) ? { qPositions: positions(queries) } : {}),
    ...(chance(r, 0.4) ? { kPositions: positions(keys) } : {}),
  };
}

function randomNorm(r: Random, width: number) {
  const gain = () => r.floats(width).map((x) => 1 + x / 2);
  return {
    ...(chance(r, 0.5) ? { qGain: gain() } : {}),
    ...(chance(r, 0.5) ? { kGain: gain() } : {}),
    ...(chance(r, 0.3) ? { eps: 1e-3 } : {}),
  };
}

/** Random options that do not depend on lengths; also for packed sequences and caches. */
export function randomScoring(r: Random, heads: number): Pick<MaskOptions, 'scale' | 'alibi' | 'softcap' | 'sinks'> {
  return {
    ...(chance(r, 0.4) ? { scale: r.pick([0, -0.7, 0.3, 1]) } : {}),
    ...(chance(r, 0.25) ? { alibi: chance(r, 0.5) || r.floats(heads) } : {}),
    ...(chance(r, 0.25) ? { softcap: r.pick([0.5, 3, 30]) } : {}),
    ...(chance(r, 0.25) ? { sinks: r.floats(heads).map((x) => 3 * x) } : {}),
  };
}

export function randomDropout(r: Random): Pick<MaskOptions, 'dropout'> {
  if (!chance(r, 0.2)) return {};
  const seed = chance(r, 0.5) ? r.int(0, 1000) : BigInt(r.int(0, 2 ** 31)) * 2n ** 33n;
  return { dropout: { probability: r.pick([0.1, 0.5, 0.9]), seed } };
}

const stages: ScoreStage[] = ['raw', 'capped', 'masked', 'weights'];

export function randomCaptures(r: Random, heads: number, queries: number): Capture[] {
  const captures: Capture[] = [];
  while (chance(r, 0.4)) {
    const first = r.int(0, queries);
    const chosen = Array.from({ length: heads }, (_, h) => h).filter(() => chance(r, 0.6));
    captures.push({
      stage: r.pick(stages),
      ...(chance(r, 0.5) ? { rows: [first, r.int(0, queries - first)] } : {}),
      ...(chance(r, 0.5) && chosen.length > 0 ? { heads: chosen.reverse() } : {}),
    });
  }
  return captures;
}

export type RandomCase = ReturnType<typeof randomCase>;

export function randomCase(seed: number) {
  const r = random(seed);
  const numKvHeads = r.int(1, 3);
  const heads = numKvHeads * r.pick([1, 1, 2, 4]);
  const extents = [r.int(1, 2), heads, r.int(1, 40), r.pick([0, 1, 7, 16, 33, 70])] as const;
  const [batch, , queries, keys] = extents;
  const [width, valueDim] = [r.pick([1, 3, 7, 8, 20, 33, 64]), r.pick([1, 4, 5, 20, 64])];
  const dtype = randomDType(r);
  const qDType = chance(r, 0.2) ? randomDType(r) : dtype;
  const tensor = (of: FloatDType, ...shape: number[]) => stored(of, shape, r.floats(product(shape)));
  const q = tensor(qDType, batch, heads, queries, width);
  const k = tensor(dtype, batch, numKvHeads, keys, width);
  const v = tensor(dtype, batch, numKvHeads, keys, valueDim);

  const masking = {
    ...randomOrder(r, extents),
    ...randomScoring(r, heads),
    ...randomDropout(r),
    ...(chance(r, 0.3) ? { mask: randomMask(r, maskShape(r, extents)) } : {}),
    ...(chance(r, 0.3) ? { bias: randomBias(r, maskShape(r, extents)) } : {}),
    ...(chance(r, 0.2) ? { qkNorm: randomNorm(r, width) } : {}),
    ...(width > 1 && chance(r, 0.3) ? { rope: randomRope(r, extents, width) } : {}),
  };
  const outDtype = chance(r, 0.3) ? randomDType(r) : 'f32';
  const captures = randomCaptures(r, heads, queries);
  const options = {
    ...masking,
    ...(outDtype === 'f32' ? {} : { outDtype }),
    ...(captures.length > 0 ? { capture: captures } : {}),
    return: ['lse', 'weights', ...(masking.dropout ? (['dropoutMask'] as const) : [])],
  } satisfies AttentionOptions & ReferenceOptions;
  const text = JSON.stringify(options, (name, value: unknown) => {
    if (typeof value === 'bigint') return `${value}n`;
    return name === 'data' ? '…' : value;
  });
  const label = `seed ${seed}: q ${qDType} (${q.plain.shape}), k ${dtype} (${k.plain.shape}), v (${v.plain.shape}), ${text}`;
  return { q, k, v, extents, width, outDtype, options, label };
}

/**
 * Tolerance by SEMANTICS, "Precision": 2e-6 for inputs in [-1, 1]. It grows with larger scores, because the rounding
 * error of a 32-bit float is relative.
 */
export function tolerance(width: number, options: MaskOptions, expected: ReferenceResult): number {
  const scale = Math.abs(options.scale ?? 1 / Math.sqrt(width));
  const visible = expected.masked.filter((score) => Number.isFinite(score)).map(Math.abs);
  const largest = visible.reduce((a, b) => Math.max(a, b), scale * width * (options.qkNorm ? 2 : 0.25));
  return 2e-6 * Math.max(1, largest / 8);
}

/** Tolerance for a stage: scores, unlike weights, are not bounded by 1, and scores of hidden keys may be larger. */
export const stageTolerance = (stage: ScoreStage, allowed: number): number => (stage === 'weights' ? allowed : 2 * allowed);

/** The part of (B, H_q, N_q, N_k) that a capture copies. */
export function capturedPart(
  whole: Float64Array,
  [batch, heads, queries, keys]: Extents,
  { heads: chosen, rows }: Pick<Capture, 'heads' | 'rows'>,
): { shape: number[]; data: number[] } {
  const [first, count] = rows ?? [0, queries];
  const every = chosen ?? Array.from({ length: heads }, (_, h) => h);
  const data: number[] = [];
  for (let b = 0; b < batch; b += 1) {
    for (const h of every) {
      const from = ((b * heads + h) * queries + first) * keys;
      data.push(...whole.subarray(from, from + count * keys));
    }
  }
  return { shape: [batch, every.length, count, keys], data };
}

/** Cumulative lengths of some sequences, some of them empty. */
export function cumulative(r: Random, sequences: number): Int32Array {
  const ends = [0];
  for (let s = 0; s < sequences; s += 1) ends.push((ends[s] as number) + r.pick([0, 1, 5, 17, 40]));
  return Int32Array.from(ends);
}
