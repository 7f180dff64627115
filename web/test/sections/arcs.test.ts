import { describe, expect, it } from 'vitest';
import { arcsOf, curve, linesOf } from '../../src/sections/sentence/arcs.js';

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

describe('curve', () => {
  /** Four lines of four words, and a last line of one word. */
  const words = Array.from({ length: 17 }, (_, i) => {
    const [row, col] = [Math.floor(i / 4), i % 4];
    return { left: col * 60, right: col * 60 + 58, top: 60 + row * 80, bottom: 96 + row * 80 };
  });

  /** Points on a path that consists of the commands M, C and V. */
  function pointsOf(d: string): [number, number][] {
    let [x, y] = [0, 0];
    return [...d.matchAll(/([MCV])([^MCV]*)/g)].flatMap(([, command, rest]) => {
      const n = rest!.trim().split(/\s+/).map(Number) as [number, number, number, number, number, number];
      const [x0, y0] = [x, y];
      [x, y] = command === 'M' ? [n[0], n[1]] : command === 'V' ? [x0, n[0]] : [n[4], n[5]];
      if (command === 'M') return [];
      const [c1, c2] =
        command === 'V'
          ? [
              [x0, y0],
              [x, y],
            ]
          : [n.slice(0, 2), n.slice(2, 4)];
      return Array.from({ length: 21 }, (_, i): [number, number] => {
        const t = i / 20;
        const mix = (a: number, b: number, c: number, e: number) =>
          a * (1 - t) ** 3 + 3 * b * t * (1 - t) ** 2 + 3 * c * t ** 2 * (1 - t) + e * t ** 3;
        return [mix(x0, c1![0]!, c2![0]!, x), mix(y0, c1![1]!, c2![1]!, y)];
      });
    });
  }

  it('crosses no word but those at its ends, on one line and over up to five, up and down', () => {
    const lines = linesOf(words);
    /**
     * Index of the word at a point, or −1. A word does not include its outer 4 px left and right and 1 px above and
     * below.
     */
    const inside = (x: number, y: number) =>
      words.findIndex(({ left, right, top, bottom }) => x > left + 4 && x < right - 4 && y > top + 1 && y < bottom - 1);
    for (const query of words.keys()) {
      for (const key of words.keys()) {
        for (const aside of [-6, 0, 6]) {
          const { d, x, y } = curve({ word: words[query]!, aside }, { word: words[key]!, aside: 0 }, lines, 3);
          const crossed = pointsOf(d)
            .map(([px, py]) => inside(px, py))
            .filter((word) => word >= 0);
          expect([query, key, crossed]).toEqual([query, key, []]);
          expect(x).toBe((words[key]!.left + words[key]!.right) / 2);
          expect(Math.min(Math.abs(y - words[key]!.top), Math.abs(y - words[key]!.bottom))).toBeLessThan(16);
        }
      }
    }
  });
});
