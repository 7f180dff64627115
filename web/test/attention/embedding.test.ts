import { describe, expect, it } from 'vitest';
import {
  assignCodes,
  blockStart,
  codeWord,
  codeWords,
  embed,
  embedDim,
  featureName,
  firstLetter,
  positionCode,
  speeds,
} from '../../src/attention/embedding.js';

const dot = (a: readonly number[], b: readonly number[]) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);
const row = (x: Float32Array, i: number) => [...x.subarray(i * embedDim, (i + 1) * embedDim)];

describe('code words', () => {
  const all = Array.from({ length: codeWords }, (_, i) => codeWord(i));

  it('are 16 signs', () => {
    for (const word of all) expect(word.map(Math.abs)).toEqual(Array(16).fill(1));
  });

  it('differ in at least 6 signs, and in at least 2 of the first 8', () => {
    for (let a = 0; a < codeWords; a += 1) {
      for (let b = 0; b < a; b += 1) {
        expect(dot(all[a]!, all[b]!)).toBeLessThanOrEqual(4);
        expect(dot(all[a]!.slice(0, 8), all[b]!.slice(0, 8))).toBeLessThanOrEqual(4);
      }
    }
  });

  it('are distinct for distinct keys, and equal for equal keys', () => {
    const keys = Array.from({ length: 64 }, (_, i) => `word ${i}`);
    expect(new Set(assignCodes(keys)).size).toBe(64);
    const [a, b, c] = assignCodes(['cat', 'mat', 'cat']);
    expect(c).toBe(a);
    expect(b).not.toBe(a);
  });

  it('do not depend on later keys', () => {
    const keys = Array.from({ length: 40 }, (_, i) => `w${i}`);
    expect(assignCodes([...keys, 'x']).slice(0, 40)).toEqual(assignCodes([...keys, 'y']).slice(0, 40));
  });
});

describe('position code', () => {
  const likeness = (distance: number, used: readonly number[]) => used.reduce((sum, f) => sum + Math.cos(speeds[f]! * distance), 0) / used.length;

  it('distinguishes a position from all others within 64 tokens', () => {
    for (let distance = 1; distance <= 64; distance += 1) {
      expect(likeness(distance, [0, 1, 2, 3, 4, 5, 6, 7])).toBeLessThan(0.41);
      expect(likeness(distance, [0, 1, 2, 7])).toBeLessThan(0.52);
    }
  });

  it('has a dot product that depends only on the distance', () => {
    expect(dot(positionCode(3), positionCode(10))).toBeCloseTo(dot(positionCode(40), positionCode(47)), 10);
    expect(dot(positionCode(17), positionCode(17))).toBeCloseTo(8, 10);
  });
});

describe('embed', () => {
  it('gives equal words equal word blocks, whatever their case', () => {
    const x = embed(['The', 'cat', 'the']);
    expect(x.length).toBe(3 * embedDim);
    const word = (i: number) => row(x, i).slice(blockStart('word'), blockStart('letter'));
    expect(word(2)).toEqual(word(0));
    expect(word(1)).not.toEqual(word(0));
  });

  it('marks kinds', () => {
    const [article, mark, capital] = ['the', '!', 'Paris'].map((token) => row(embed([token]), 0).slice(48));
    expect(article![0]).toBe(1);
    expect(article![5]).toBe(1);
    expect(mark![4]).toBe(1);
    expect(capital![2]).toBe(1);
  });

  it('reads first letters without accents and case', () => {
    expect(['École', 'egg', 'E'].map(firstLetter)).toEqual(['e', 'e', 'e']);
  });

  it('names every feature', () => {
    const names = Array.from({ length: embedDim }, (_, i) => featureName(i));
    expect(new Set(names).size).toBe(embedDim);
    expect(names[1]).toBe('position, cos at 3.00 radians a token');
    expect(names[48]).toBe('kind, constant 1');
  });

  it('stays the same before an edited token, bit for bit', () => {
    const before = embed(['the', 'black', 'cat', 'sat']);
    const after = embed(['the', 'black', 'cat', 'ran']);
    expect(after.slice(0, 3 * embedDim)).toEqual(before.slice(0, 3 * embedDim));
  });
});
