import { describe, expect, it } from 'vitest';
import { arcsOf } from '../src/parts/arcs.js';

const arcs = (row: number[]) => arcsOf(row, 0, 1, 'head-first').map(({ key, numbered }) => [key, numbered]);

describe('arcsOf', () => {
  it('draws the strong weights and numbers the strongest', () => {
    expect(arcs([0, 0.01, 0.99])).toEqual([[2, true]]);
    expect(arcs([0.5, 0.5, 0])).toEqual([
      [0, true],
      [1, true],
    ]);
    expect(arcs([0.2, 0.28, 0.19, 0.05])).toEqual([
      [1, true],
      [0, false],
      [2, false],
    ]);
  });

  it('draws every word of a short even row, and none of a long one', () => {
    expect(arcs(Array(10).fill(1 / 10))).toHaveLength(10);
    expect(arcs(Array(64).fill(1 / 64))).toEqual([]);
  });

  it('draws nothing for a row without weights', () => {
    expect(arcs([0, 0])).toEqual([]);
  });
});
