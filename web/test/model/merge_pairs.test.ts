import { describe, expect, it, vi } from 'vitest';
import { mergePairs } from '../../src/model/merge_pairs.js';
import { bytePairs } from '../../src/model/tokenizers.js';

type RankOf = (left: string, right: string) => number | undefined;

/** The definition: looks through all pairs before each merge. */
function simply(letters: readonly string[], rankOf: RankOf): string[] {
  const parts = [...letters];
  for (;;) {
    const ranks = parts.slice(1).map((right, at) => rankOf(parts[at]!, right) ?? Infinity);
    const lowest = Math.min(...ranks);
    if (lowest === Infinity) return parts;
    const at = ranks.indexOf(lowest);
    parts.splice(at, 2, parts[at]! + parts[at + 1]!);
  }
}

/** A generator of numbers in [0, 1), for cases that can be repeated (mulberry32). */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

describe('merging pairs', () => {
  it('gives the parts of the simple algorithm, for any list of merges', () => {
    const random = generator(12);
    const below = (count: number) => Math.floor(random() * count);
    for (let round = 0; round < 3000; round += 1) {
      const alphabet = 'abcd'.slice(0, 1 + below(4));
      const text = (most: number) => Array.from({ length: 1 + below(most) }, () => alphabet[below(alphabet.length)]!);
      // Any order of ranks: a pair may have a lower rank than the merges that make its parts, and some share one.
      const ranks = new Map(Array.from({ length: below(30) }, () => [`${text(3).join('')} ${text(3).join('')}`, below(20)]));
      const rankOf: RankOf = (left, right) => ranks.get(`${left} ${right}`);
      const letters = text(40);
      expect(mergePairs(letters, rankOf), `round ${round}`).toEqual(simply(letters, rankOf));
    }
    expect(mergePairs([], () => 1)).toEqual([]);
    expect(mergePairs(['a'], () => 1)).toEqual(['a']);
  });

  it.each([
    ['equal letters', 'a'],
    ['letters in turns', 'ab'],
    ['letters of no order', undefined],
  ])('looks at most three pairs up for each letter of %s', (_, period) => {
    const random = generator(7);
    const count = 20_000;
    const letters = Array.from({ length: count }, (_, at) => (period ? period[at % period.length]! : 'abcd'[Math.floor(4 * random())]!));
    const rankOf = vi.fn<RankOf>((left, right) => (left.length === right.length ? left.length : undefined));
    expect(mergePairs(letters, rankOf).join('')).toBe(letters.join(''));
    expect(rankOf.mock.calls.length).toBeLessThanOrEqual(3 * count);
  });

  it('is how a model reads a sentence without spaces', () => {
    const get = vi.spyOn(Map.prototype, 'get');
    const count = 5000;
    const vocabulary = JSON.stringify({ a: 0, b: 1, aa: 2, ab: 3 });
    const { ids } = bytePairs(vocabulary, 'a a\na b', 4).encode('aab'.repeat(count / 5));
    const looks = get.mock.calls.length;
    get.mockRestore();
    expect(ids.length).toBe((2 * count) / 5);
    expect(looks).toBeLessThan(20 * count);
  });
});
