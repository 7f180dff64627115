import { describe, expect, it } from 'vitest';
import { cacheBytes, multiplyAdds } from '../../src/training/multiply_adds.js';

const size = { layers: 2, embedDim: 4, vocabSize: 8 };

describe('multiply-adds', () => {
  it('counts projections, scores, weighted sums and logits', () => {
    // Row 0: per layer 4 · 16 for the projections, 4 for its one score and 4 for its one value; 32 for the logits.
    expect(multiplyAdds(size, 0, 1)).toBe(2 * (64 + 8) + 32);
    expect(multiplyAdds(size, 2, 3)).toBe(2 * (64 + 3 * 8) + 32);
  });

  it('adds up: all rows one by one are all rows together', () => {
    let sum = 0;
    for (let row = 0; row < 9; row += 1) sum += multiplyAdds(size, row, row + 1);
    expect(multiplyAdds(size, 0, 9)).toBe(sum);
    expect(multiplyAdds(size, 9, 9)).toBe(0);
  });

  it('a cache holds a key and a value of every layer for each token', () => {
    expect(cacheBytes(size, 3)).toBe(3 * 2 * 2 * 4 * 4);
  });
});
