// Attention weights of one head in float64, for tests: softmax(x W_Qᵀ (x W_Kᵀ)ᵀ / √d_head).

import { embed, embedDim } from '../../src/attention/embedding.js';
import { headDim, patternOf, type PatternId } from '../../src/attention/patterns.js';

const project = (x: Float32Array, w: Float32Array): number[][] =>
  Array.from({ length: x.length / embedDim }, (_, i) =>
    Array.from({ length: headDim }, (_, r) => {
      let sum = 0;
      for (let c = 0; c < embedDim; c += 1) sum += x[i * embedDim + c]! * w[r * embedDim + c]!;
      return sum;
    }),
  );

export function weightsOf(id: PatternId, tokens: readonly string[], causal: boolean): number[][] {
  const x = embed(tokens);
  const q = project(x, patternOf(id).query());
  const k = project(x, patternOf(id).key());
  return q.map((row, i) => {
    const scores = k.map((other, j) =>
      causal && j > i ? -Infinity : row.reduce((sum, value, d) => sum + value * other[d]!, 0) / Math.sqrt(headDim),
    );
    const top = Math.max(...scores);
    const exps = scores.map((score) => Math.exp(score - top));
    const total = exps.reduce((a, b) => a + b);
    return exps.map((value) => value / total);
  });
}
