// Counts the work of a transformer of attention layers without MLPs.

export interface ModelSize {
  readonly layers: number;
  readonly embedDim: number;
  readonly vocabSize: number;
}

/**
 * Multiply-adds for the rows `from` to `to` − 1 of a causal pass: in each layer 4 · embedDim² per row for the four
 * projections, and 2 · embedDim per key that the row sees for the scores and the weighted sum; then embedDim ·
 * vocabSize per row for the logits.
 */
export function multiplyAdds({ layers, embedDim, vocabSize }: ModelSize, from: number, to: number): number {
  let total = 0;
  for (let row = from; row < to; row += 1) {
    const seen = row + 1;
    total += layers * (4 * embedDim * embedDim + 2 * embedDim * seen) + embedDim * vocabSize;
  }
  return total;
}

/** Bytes of the keys and values of `rows` tokens, as 32-bit floats. */
export const cacheBytes = ({ layers, embedDim }: ModelSize, rows: number): number => 2 * 4 * layers * embedDim * rows;
