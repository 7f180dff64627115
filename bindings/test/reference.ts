// Attention in float64, written only from the definition in SEMANTICS; slow and simple on purpose.

import type { Alignment, Causal, MaskOptions, QkNorm, RopeRotation } from 'multihead';
import { keepsWeights } from './philox.ts';

export interface Plain {
  readonly shape: readonly number[];
  readonly data: ArrayLike<number>;
}

/** Masks and biases have rank 2 or 4; an extent of 1 broadcasts. */
export interface ReferenceOptions extends Omit<MaskOptions, 'mask' | 'bias'> {
  readonly mask?: Plain | undefined;
  readonly bias?: Plain | undefined;
  /** (B): keys before this index are hidden, like the overwritten keys of a ring cache. */
  readonly firstKept?: readonly number[] | undefined;
  /** ALiBi distances count from the end of each entry's keys, as in a cache, instead of from N_k. */
  readonly alibiOfLength?: boolean | undefined;
}

export interface ReferenceResult {
  readonly out: Float64Array;
  readonly lse: Float64Array;
  readonly weights: Float64Array;
  /** q·k, without the scale. */
  readonly scores: Float64Array;
  /** Stages of a capture: scaled; capped; with bias and masks. −Infinity in every stage for keys beyond the lengths. */
  readonly raw: Float64Array;
  readonly capped: Float64Array;
  readonly masked: Float64Array;
  /** 1 where dropout keeps a weight. */
  readonly dropoutMask: Uint8Array;
}

const at = (array: ArrayLike<number>, index: number): number => {
  const value = array[index];
  if (value === undefined) throw new RangeError(`index ${index} of ${array.length}`);
  return value;
};

function broadcast({ shape, data }: Plain, b: number, h: number, i: number, j: number): number {
  const full = shape.length === 2 ? [1, 1, ...shape] : shape;
  const index = [b, h, i, j].reduce((sum, position, axis) => {
    const extent = at(full, axis);
    return sum * extent + (extent === 1 ? 0 : position);
  }, 0);
  return at(data, index);
}

/** The offset of an alignment: query i is at position p = i + offset. */
function offsetOf(alignment: Alignment, queries: number, keys: number, length: number): number {
  if (alignment === 'topLeft') return 0;
  if (alignment === 'bottomRight') return keys - queries;
  return alignment === 'bottomRightOfLength' ? length - queries : alignment.offset;
}

/** x / √(mean(x²) + eps) · gain, in place. */
function normalize(x: Float64Array, gain: ArrayLike<number> | undefined, eps: number): void {
  const mean = x.reduce((sum, each) => sum + each * each, 0) / x.length;
  const factor = 1 / Math.sqrt(mean + Math.fround(eps));
  x.forEach((each, c) => (x[c] = each * factor * (gain === undefined ? 1 : at(gain, c))));
}

/** Rotates one vector to a position, in place. */
export function rotateVector(x: Float64Array, position: number, rope: RopeRotation): void {
  const { style, base = 10_000, rotaryDim = x.length } = rope;
  for (let c = 0; c < rotaryDim / 2; c += 1) {
    const angle = position * base ** ((-2 * c) / rotaryDim);
    const [first, second] = style === 'half' ? [c, c + rotaryDim / 2] : [2 * c, 2 * c + 1];
    const [u, v] = [at(x, first), at(x, second)];
    x[first] = u * Math.cos(angle) - v * Math.sin(angle);
    x[second] = u * Math.sin(angle) + v * Math.cos(angle);
  }
}

/** x (B, H, N, d), with positions (N) or (B · N). */
export function rotate(x: Plain, positions: ArrayLike<number>, rope: RopeRotation): Float64Array {
  const [, heads = 0, rows = 0, width = 0] = x.shape;
  const y = Float64Array.from(x.data);
  for (let row = 0; width > 0 && row < y.length / width; row += 1) {
    const [b, i] = [Math.floor(row / (heads * rows)), row % rows];
    const position = at(positions, positions.length === rows ? i : b * rows + i);
    rotateVector(y.subarray(row * width, (row + 1) * width), position, rope);
  }
  return y;
}

export const alibiSlopes = (heads: number): number[] => {
  const n = 2 ** Math.floor(Math.log2(heads));
  return Array.from({ length: heads }, (_, h) => (h < n ? 2 ** ((-8 * (h + 1)) / n) : 2 ** ((-4 * (2 * (h - n) + 1)) / n)));
};

function slopesOf(alibi: MaskOptions['alibi'], heads: number): ArrayLike<number> | undefined {
  if (alibi === true) return alibiSlopes(heads);
  return alibi === false ? undefined : alibi;
}

/** Returns the position of query 0 in entry b. */
export function firstPosition({ causal = false, window = {}, kvLengths }: MaskOptions, queries: number, keys: number, b: number): number {
  const stated: Causal = causal === true ? 'topLeft' : causal;
  const alignment: Alignment = stated || (window.align ?? 'topLeft');
  return offsetOf(alignment, queries, keys, kvLengths?.[b] ?? keys);
}

/** x after QK-norm and RoPE. `first(b)` is the position of row 0 if no positions are given. */
export function prepared(
  x: Plain,
  norm: QkNorm | undefined,
  gain: Float32Array | undefined,
  rope: RopeRotation | undefined,
  positions: Int32Array | undefined,
  first: (b: number) => number,
): Float64Array {
  const [batch = 0, heads = 0, rows = 0, width = 0] = x.shape;
  const y = Float64Array.from(x.data);
  if (norm) {
    for (let from = 0; width > 0 && from < y.length; from += width) {
      normalize(y.subarray(from, from + width), gain, norm.eps ?? 1e-6);
    }
  }
  if (!rope) return y;
  const every = Array.from({ length: batch * rows }, (_, row) => {
    const [b, i] = [Math.floor(row / rows), row % rows];
    if (positions === undefined) return first(b) + i;
    return at(positions, positions.length === rows ? i : row);
  });
  // Processes one batch entry at a time; `every` has separate positions for each.
  const shape = [1, heads, rows, width];
  const size = heads * rows * width;
  for (let b = 0; b < batch; b += 1) {
    const entry = y.subarray(b * size, (b + 1) * size);
    entry.set(rotate({ shape, data: entry }, every.slice(b * rows, (b + 1) * rows), rope));
  }
  return y;
}

export function attention(q: Plain, k: Plain, v: Plain, options: ReferenceOptions = {}): ReferenceResult {
  const [batch = 0, heads = 0, queries = 0, width = 0] = q.shape;
  const [, numKvHeads = 0, keys = 0] = k.shape;
  const valueDim = at(v.shape, 3);
  const group = numKvHeads === 0 ? 1 : heads / numKvHeads;
  const scale = options.scale ?? 1 / Math.sqrt(width);
  const { causal = false, window = {}, softcap = 0, sinks, qkNorm, rope } = options;
  const { left = -1, right = -1 } = window;
  const slopes = slopesOf(options.alibi, heads);
  const { probability = 0, seed = 0 } = options.dropout ?? {};
  const keeps = keepsWeights(probability, BigInt(seed));
  const lengthOf = (b: number): number => options.kvLengths?.[b] ?? keys;
  const offset = (b: number): number => firstPosition(options as MaskOptions, queries, keys, b);
  const query = prepared(q, qkNorm, qkNorm?.qGain, rope, rope?.qPositions, offset);
  const key = prepared(k, qkNorm, qkNorm?.kGain, rope, rope?.kPositions, () => 0);

  const rows = batch * heads * queries;
  const result: ReferenceResult = {
    out: new Float64Array(rows * valueDim),
    lse: new Float64Array(rows),
    weights: new Float64Array(rows * keys),
    scores: new Float64Array(rows * keys),
    raw: new Float64Array(rows * keys).fill(-Infinity),
    capped: new Float64Array(rows * keys).fill(-Infinity),
    masked: new Float64Array(rows * keys).fill(-Infinity),
    dropoutMask: new Uint8Array(rows * keys),
  };

  for (let b = 0; b < batch; b += 1) {
    for (let h = 0; h < heads; h += 1) {
      const kvRow = (b * numKvHeads + Math.floor(h / group)) * keys;
      for (let i = 0; i < queries; i += 1) {
        const row = (b * heads + h) * queries + i;
        const p = i + offset(b);
        const visible: number[] = [];
        for (let j = 0; j < keys; j += 1) {
          const index = row * keys + j;
          result.dropoutMask[index] = keeps(b, h, i, j) ? 1 : 0;
          let dot = 0;
          for (let d = 0; d < width; d += 1) {
            dot += at(query, row * width + d) * at(key, (kvRow + j) * width + d);
          }
          result.scores[index] = dot;
          if (j >= lengthOf(b) || j < (options.firstKept?.[b] ?? 0)) continue;
          let score = scale * dot;
          result.raw[index] = score;
          if (softcap > 0) score = softcap * Math.tanh(score / softcap);
          result.capped[index] = score;
          const bias = options.bias ? broadcast(options.bias, b, h, i, j) : 0;
          score += bias;
          const end = options.alibiOfLength ? lengthOf(b) : keys;
          if (slopes) score -= at(slopes, h) * Math.abs(i + end - queries - j);
          const hidden =
            (causal !== false && j > p) ||
            (left >= 0 && j < p - left) ||
            (right >= 0 && j > p + right) ||
            (options.mask && broadcast(options.mask, b, h, i, j) === 0) ||
            bias === -Infinity;
          if (hidden) continue;
          result.masked[index] = score;
          visible.push(j);
        }
        const masked = (j: number): number => at(result.masked, row * keys + j);
        const sink = sinks ? [at(sinks, h)] : [];
        const max = Math.max(...sink, ...visible.map(masked));
        const sum = [...sink, ...visible.map(masked)].reduce((a, s) => a + Math.exp(s - max), 0);
        result.lse[row] = sum === 0 ? -Infinity : max + Math.log(sum);
        for (const j of visible) {
          const weight = Math.exp(masked(j) - max) / sum;
          result.weights[row * keys + j] = weight;
          const kept = keeps(b, h, i, j) ? weight / (1 - Math.fround(probability)) : 0;
          for (let d = 0; kept !== 0 && d < valueDim; d += 1) {
            const index = row * valueDim + d;
            result.out[index] = at(result.out, index) + kept * at(v.data, (kvRow + j) * valueDim + d);
          }
        }
      }
    }
  }
  return result;
}

/** Rows first to last − 1 of (T, H, d), returned as (1, H, rows, d). */
export function sequenceOf(x: Plain, first: number, last: number): Plain {
  const [, heads = 0, width = 0] = x.shape;
  const data = new Float64Array(heads * (last - first) * width);
  for (let t = first; t < last; t += 1) {
    for (let h = 0; h < heads; h += 1) {
      for (let d = 0; d < width; d += 1) {
        data[(h * (last - first) + t - first) * width + d] = at(x.data, (t * heads + h) * width + d);
      }
    }
  }
  return { shape: [1, heads, last - first, width], data };
}

/** x·Wᵀ + b, with x (rows, in), W (out, in) and b (out). */
export function linear(x: Plain, weight: Plain, bias?: Plain): Float64Array {
  const [outWidth = 0, inWidth = 0] = weight.shape;
  const rows = x.shape.slice(0, -1).reduce((a, b) => a * b, 1);
  const y = new Float64Array(rows * outWidth);
  for (let r = 0; r < rows; r += 1) {
    for (let o = 0; o < outWidth; o += 1) {
      let sum = bias ? at(bias.data, o) : 0;
      for (let i = 0; i < inWidth; i += 1) {
        sum += at(x.data, r * inWidth + i) * at(weight.data, o * inWidth + i);
      }
      y[r * outWidth + o] = sum;
    }
  }
  return y;
}

/** Largest absolute difference; Infinity if one value is infinite or NaN and the other is not equal to it. */
export function maxDifference(actual: ArrayLike<number>, expected: ArrayLike<number>): number {
  if (actual.length !== expected.length) return Infinity;
  let worst = 0;
  for (let i = 0; i < expected.length; i += 1) {
    const a = at(actual, i);
    const e = at(expected, i);
    if (a === e) continue;
    const difference = Math.abs(a - e);
    worst = Math.max(worst, Number.isFinite(difference) ? difference : Infinity);
  }
  return worst;
}
