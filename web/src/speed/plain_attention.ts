// Causal attention in plain JavaScript with typed arrays, as most programmers would write it: the baseline of the speed
// section.

import type { Shape } from './messages.js';

/** q, k, v and out are (heads, tokens, width), row-major. */
export function plainAttention({ heads, queries: tokens, width }: Shape, q: Float32Array, k: Float32Array, v: Float32Array, out: Float32Array): void {
  const scale = 1 / Math.sqrt(width);
  const weights = new Float64Array(tokens);
  const sums = new Float64Array(width);
  for (let head = 0; head < heads; head += 1) {
    const start = head * tokens * width;
    for (let i = 0; i < tokens; i += 1) {
      const row = start + i * width;
      let largest = -Infinity;
      for (let j = 0; j <= i; j += 1) {
        const key = start + j * width;
        let score = 0;
        for (let d = 0; d < width; d += 1) score += q[row + d]! * k[key + d]!;
        score *= scale;
        weights[j] = score;
        if (score > largest) largest = score;
      }
      let total = 0;
      for (let j = 0; j <= i; j += 1) total += weights[j] = Math.exp(weights[j]! - largest);
      sums.fill(0);
      for (let j = 0; j <= i; j += 1) {
        const value = start + j * width;
        const weight = weights[j]!;
        for (let d = 0; d < width; d += 1) sums[d]! += weight * v[value + d]!;
      }
      for (let d = 0; d < width; d += 1) out[row + d] = sums[d]! / total;
    }
  }
}
