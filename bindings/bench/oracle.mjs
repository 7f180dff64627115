// float64 results of a few rows, by the definition.

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

/** Largest difference in the middle and last rows of the last head of the last batch entry. */
export function attentionError({ shape, mask, slope }, q, k, v, out) {
  const { batch, heads, kvHeads, queries, keys, width } = shape;
  const first = (batch * kvHeads - 1) * keys * width;
  let largest = 0;
  for (const row of new Set([queries >> 1, queries - 1])) {
    const at = ((batch * heads - 1) * queries + row) * width;
    const added = additiveRow(shape, mask, row, slope);
    const scores = added.map((add, j) =>
      add === -Infinity ? add : dot(q, at, k, first + j * width, width) / Math.sqrt(width) + add,
    );
    const weights = softmax(scores);
    for (let c = 0; c < width; c += 1) {
      let value = 0;
      weights.forEach((weight, j) => (value += weight * v[first + j * width + c]));
      largest = Math.max(largest, Math.abs(value - out[at + c]));
    }
  }
  return largest;
}

/** y = W x, or with `transposed` y = Wᵀ x, of rows first … first + rows − 1 of W. */
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
 * The same for the last token of a module: q · (W_k x_j) = (W_kᵀ q) · x_j and Σ w_j W_v x_j = W_v Σ w_j x_j, so that
 * no other token needs to be projected.
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

/** Largest difference in the middle and last rows of y = x Wᵀ + bias. */
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
