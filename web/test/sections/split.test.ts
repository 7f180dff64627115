import { describe, expect, it } from 'vitest';
import { firstWrong, indexOf, sourceOf, stridesOf } from '../../src/sections/split/split.js';

describe('the split of q (5, 64) among 8 heads', () => {
  const size = { heads: 8, tokens: 5, width: 64 };
  const [right, wrong] = [stridesOf(size, false), stridesOf(size, true)];

  it('has strides of 64 from token to token and 8 from head to head', () => {
    expect(right).toEqual({ head: 8, token: 64, col: 1 });
    expect(indexOf({ head: 2, token: 3, col: 1 }, right)).toBe(3 * 64 + 2 * 8 + 1);
  });

  it('gives every number to exactly one cell, both ways', () => {
    for (const strides of [right, wrong]) {
      const seen = new Set<number>();
      for (let head = 0; head < 8; head += 1) {
        for (let token = 0; token < 5; token += 1) {
          for (let col = 0; col < 8; col += 1) seen.add(indexOf({ head, token, col }, strides));
        }
      }
      expect([seen.size, Math.max(...seen)]).toEqual([320, 319]);
    }
  });

  it('goes wrong first at head 1, token 2, column 1, which gets column 9 of token 1', () => {
    const place = firstWrong(size)!;
    expect(place).toEqual({ head: 0, token: 1, col: 0 });
    expect(sourceOf(indexOf(place, wrong), 64)).toEqual({ token: 0, col: 8 });
  });

  it('cannot go wrong with one head or one token', () => {
    expect(firstWrong({ ...size, heads: 1 })).toBeNull();
    expect(firstWrong({ ...size, tokens: 1 })).toBeNull();
  });
});
