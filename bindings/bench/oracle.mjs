// The float64 oracle: computes a few rows of the results from the definition.

import { additiveRow } from './inputs.mjs';

const dot = (a, aAt, b, bAt, count) => {
  let sum = 0;
  for (let c = 0; c < count; c += 1) sum += a[aAt + c] * b[bAt + c];
  return sum;
};

function softmax(scores) {
  const maximum = scores.reduce((a, b) => Math.max(a, b));
  const weights = scores.map((score) => Math.exp(score - maximum));
  const sum = weights.reduce((a, b) => a + b);
  return weights.map((weight) => weight / sum);
}

/**
 * Returns the largest difference between `got` and sums of rows of `values`, for the middle and last rows of the last head of the last
 * batch entry. `factorsOf` gives the factors of the sum, by the row's weights, its offset and the offset of the head's keys.
 */
function rowsError({ shape, mask, slope = 0 }, q, k, values, got, factorsOf) {
  const { batch, heads, numKvHeads, queries, keys, width } = shape;
  const first = (batch * numKvHeads - 1) * keys * width;
  let largest = 0;
  for (const row of new Set([queries >> 1, queries - 1])) {
    const at = ((batch * heads - 1) * queries + row) * width;
    const added = additiveRow(shape, mask, row, slope);
    const scores = added.map((add, j) => (add === -Infinity ? add : dot(q, at, k, first + j * width, width) / Math.sqrt(width) + add));
    const factors = factorsOf(softmax(scores), at, first);
    for (let c = 0; c < width; c += 1) {
      const value = factors.reduce((sum, factor, j) => sum + factor * values[first + j * width + c], 0);
      largest = Math.max(largest, Math.abs(value - got[at + c]));
    }
  }
  return largest;
}

export const attentionError = (which, q, k, v, out) => rowsError(which, q, k, v, out, (weights) => weights);

/** The largest difference of dQ. */
export function gradientError(which, q, k, v, dOut, dQ) {
  const { width } = which.shape;
  return rowsError(which, q, k, k, dQ, (weights, at, first) => {
    const ofWeights = weights.map((_, j) => dot(dOut, at, v, first + j * width, width));
    const mean = weights.reduce((sum, weight, j) => sum + weight * ofWeights[j], 0);
    return weights.map((weight, j) => (weight * (ofWeights[j] - mean)) / Math.sqrt(width));
  });
}

/** y = W x, or with `transposed` y = Wᵀ x, for rows first … first + rows − 1 of W. */
function matrixVector(w, x, width, first, rows, transposed) {
  const y = new Float64Array(transposed ? width : rows);
  for (let r = 0; r < rows; r += 1) {
    const at = (first + r) * width;
    if (transposed) for (let c = 0; c < width; c += 1) y[c] += w[at + c] * x[r];
    else y[r] = dot(w, at, x, 0, width);
  }
  return y;
}

/**
 * The largest difference for the last token of a module. q · (W_k x_j) = (W_kᵀ q) · x_j and
 * Σ w_j W_v x_j = W_v Σ w_j x_j, so no other token needs to be projected.
 */
export function moduleError({ tokens, embed, width }, x, [wq, wk, wv, wo], out) {
  const token = x.subarray((tokens - 1) * embed);
  const merged = new Float64Array(embed);
  for (let first = 0; first < embed; first += width) {
    const keySide = matrixVector(wk, matrixVector(wq, token, embed, first, width), embed, first, width, true);
    const scores = Array.from({ length: tokens }, (_, j) => dot(x, j * embed, keySide, 0, embed) / Math.sqrt(width));
    const mixed = new Float64Array(embed);
    softmax(scores).forEach((weight, j) => {
      for (let c = 0; c < embed; c += 1) mixed[c] += weight * x[j * embed + c];
    });
    merged.set(matrixVector(wv, mixed, embed, first, width), first);
  }
  const expected = matrixVector(wo, merged, embed, 0, embed);
  return expected.reduce((largest, value, c) => Math.max(largest, Math.abs(value - out[(tokens - 1) * embed + c])), 0);
}

/** The largest difference in the middle and last rows of y = x Wᵀ + bias. */
export function linearError({ rows, outputs, width }, x, weight, bias, out) {
  let largest = 0;
  for (const row of new Set([rows >> 1, rows - 1])) {
    for (let o = 0; o < outputs; o += 1) {
      const expected = bias[o] + dot(x, row * width, weight, o * width, width);
      largest = Math.max(largest, Math.abs(expected - out[row * outputs + o]));
    }
  }
  return largest;
}

/** Adds y to x, in place. */
function addTo(x, y) {
  for (let c = 0; c < x.length; c += 1) x[c] += y[c];
}

function layerNorm(x, gain, bias) {
  const mean = x.reduce((a, b) => a + b) / x.length;
  const squares = x.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  const factor = 1 / Math.sqrt(squares / x.length + Math.fround(1e-5));
  return x.map((value, c) => (value - mean) * factor * gain[c] + bias[c]);
}

/** The merged heads of the newest token, from its projections and the keys and values before it. */
function attendedTo(qkv, { kHeads, vHeads }, { heads, width, keys }) {
  const embed = heads * width;
  const before = keys - 1;
  const merged = new Float64Array(embed);
  for (let head = 0; head < heads; head += 1) {
    const at = head * width;
    const first = head * before * width;
    const scores = Array.from({ length: before }, (_, j) => dot(kHeads.data, first + j * width, qkv, at, width));
    scores.push(dot(qkv, at, qkv, embed + at, width));
    const weights = softmax(scores.map((score) => score / Math.sqrt(width)));
    for (let c = 0; c < width; c += 1) {
      let value = weights[before] * qkv[2 * embed + at + c];
      for (let j = 0; j < before; j += 1) value += weights[j] * vHeads.data[first + j * width + c];
      merged[at + c] = value;
    }
  }
  return merged;
}

/**
 * Returns the largest difference between the logits and a float64 step over the keys and values that fill the cache.
 */
export function stepError({ token, ...shape }, dict, kept, logits) {
  const embed = shape.heads * shape.width;
  const values = (name) => dict[name].data;
  const normalized = (x, name) => layerNorm(x, values(`${name}.weight`), values(`${name}.bias`));
  const linear = (x, name) => {
    const y = matrixVector(values(`${name}weight`), x, x.length, 0, dict[`${name}weight`].shape[0]);
    addTo(y, values(`${name}bias`));
    return y;
  };
  const x = Float64Array.from({ length: embed }, (_, c) => values('embedding.weight')[token * embed + c]);
  addTo(x, values('position.weight').subarray((shape.keys - 1) * embed));
  kept.forEach((trace, layer) => {
    const prefix = `layers.${layer}.`;
    const qkv = linear(normalized(x, `${prefix}norm1`), `${prefix}self_attn.in_proj_`);
    addTo(x, linear(attendedTo(qkv, trace, shape), `${prefix}self_attn.out_proj.`));
    const inner = linear(normalized(x, `${prefix}norm2`), `${prefix}linear1.`);
    const gelu = inner.map((u) => (u / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (u + 0.044715 * u ** 3))));
    addTo(x, linear(gelu, `${prefix}linear2.`));
  });
  const expected = matrixVector(values('embedding.weight'), normalized(x, 'norm'), embed, 0, logits.length);
  return logits.reduce((largest, value, at) => Math.max(largest, Math.abs(value - expected[at])), 0);
}

/** The mean cross-entropy of rows of logits, in float64. */
export function crossEntropy(logits, targets, classes) {
  let sum = 0;
  targets.forEach((target, row) => {
    let exponentials = 0;
    for (let c = 0; c < classes; c += 1) exponentials += Math.exp(logits[row * classes + c]);
    sum += Math.log(exponentials) - logits[row * classes + target];
  });
  return sum / targets.length;
}

/**
 * Compares the slope of the loss along its gradient, by finite differences, with the gradient's norm; both are equal
 * for a correct gradient. Returns the difference.
 *
 * @param gradients of the sum of the loss over `counted` targets; `norm` is the norm of the mean's gradient
 */
export function slopeError(dict, gradients, norm, counted, lossOf) {
  const lossAt = (step) =>
    lossOf(
      Object.fromEntries(
        Object.entries(dict).map(([name, { shape, data }]) => {
          const slope = gradients[name].data;
          return [name, { shape, data: data.map((x, i) => x + (step * slope[i]) / (norm * counted)) }];
        }),
      ),
    );
  const central = (step) => (lossAt(step) - lossAt(-step)) / (2 * step);
  const step = 1 / 64;
  return Math.abs((4 * central(step / 2) - central(step)) / 3 - norm);
}
