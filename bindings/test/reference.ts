// Attention in float64, written from the definition in SEMANTICS and nothing else: slow and plain on purpose.

import type { Causal } from 'multihead';

export interface Plain {
  readonly shape: readonly number[];
  readonly data: ArrayLike<number>;
}

export interface ReferenceOptions {
  readonly scale?: number | undefined;
  readonly causal?: Causal | undefined;
  /** Rank 2 or 4; extents of 1 are shared. */
  readonly mask?: Plain | undefined;
  readonly bias?: Plain | undefined;
}

export interface ReferenceResult {
  readonly out: Float64Array;
  readonly lse: Float64Array;
  readonly weights: Float64Array;
  /** Raw q·k, scaled, and with bias and masks: what a trace shows. */
  readonly scores: Float64Array;
  readonly scaledScores: Float64Array;
  readonly maskedScores: Float64Array;
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

function offsetOf(causal: Causal, queries: number, keys: number): number {
  if (causal === false) return Infinity;
  if (causal === 'topLeft') return 0;
  return causal === 'bottomRight' ? keys - queries : causal.offset;
}

export function attention(
  q: Plain,
  k: Plain,
  v: Plain,
  options: ReferenceOptions = {},
): ReferenceResult {
  const [batch = 0, heads = 0, queries = 0, width = 0] = q.shape;
  const [, kvHeads = 0, keys = 0] = k.shape;
  const valueWidth = at(v.shape, 3);
  const group = kvHeads === 0 ? 1 : heads / kvHeads;
  const scale = options.scale ?? 1 / Math.sqrt(width);
  const offset = offsetOf(options.causal ?? false, queries, keys);

  const rows = batch * heads * queries;
  const result: ReferenceResult = {
    out: new Float64Array(rows * valueWidth),
    lse: new Float64Array(rows),
    weights: new Float64Array(rows * keys),
    scores: new Float64Array(rows * keys),
    scaledScores: new Float64Array(rows * keys),
    maskedScores: new Float64Array(rows * keys),
  };

  for (let b = 0; b < batch; b += 1) {
    for (let h = 0; h < heads; h += 1) {
      const kvRow = (b * kvHeads + Math.floor(h / group)) * keys;
      for (let i = 0; i < queries; i += 1) {
        const row = (b * heads + h) * queries + i;
        const visible: number[] = [];
        for (let j = 0; j < keys; j += 1) {
          let dot = 0;
          for (let d = 0; d < width; d += 1) {
            dot += at(q.data, row * width + d) * at(k.data, (kvRow + j) * width + d);
          }
          let score = scale * dot;
          result.scores[row * keys + j] = dot;
          result.scaledScores[row * keys + j] = score;
          if (options.bias) score += broadcast(options.bias, b, h, i, j);
          const allowed = !options.mask || broadcast(options.mask, b, h, i, j) !== 0;
          const seen = allowed && j <= i + offset && score !== -Infinity;
          result.maskedScores[row * keys + j] = seen ? score : -Infinity;
          if (seen) visible.push(j);
        }
        const masked = (j: number): number => at(result.maskedScores, row * keys + j);
        const max = Math.max(...visible.map(masked));
        const sum = visible.reduce((total, j) => total + Math.exp(masked(j) - max), 0);
        result.lse[row] = visible.length === 0 ? -Infinity : max + Math.log(sum);
        for (const j of visible) {
          const weight = Math.exp(masked(j) - max) / sum;
          result.weights[row * keys + j] = weight;
          for (let d = 0; d < valueWidth; d += 1) {
            const index = row * valueWidth + d;
            result.out[index] =
              at(result.out, index) + weight * at(v.data, (kvRow + j) * valueWidth + d);
          }
        }
      }
    }
  }
  return result;
}

/** (rows, in) × (out, in)ᵀ + (out). */
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

/** The largest absolute difference; Infinity where one is infinite or NaN and the other is not the same. */
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
