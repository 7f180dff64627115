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
    expect(arcs([0.2, 0.28, 0.2, 0.05])).toEqual([
      [0, false],
      [1, true],
      [2, false],
    ]);
  });

  it('draws every word of an even row', () => {
    expect(arcs(Array(64).fill(1 / 64))).toHaveLength(64);
  });

  it('draws nothing for a row without weights', () => {
    expect(arcs([0, 0])).toEqual([]);
  });
});
