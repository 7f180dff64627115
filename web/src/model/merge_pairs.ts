// Byte-pair merges of one word, in O(n log n) steps: a word of a thousand letters is merged between two key strokes.

interface Pair {
  readonly rank: number;
  /** Index of the left part's first letter. */
  readonly at: number;
  readonly left: string;
  readonly right: string;
}

const isBefore = (a: Pair, b: Pair): boolean => a.rank < b.rank || (a.rank === b.rank && a.at < b.at);

/**
 * Merges the adjacent pair of the lowest rank, the leftmost of several, until no pair has a rank.
 *
 * @param rankOf undefined for parts that are not merged
 */
export function mergePairs(
  letters: readonly string[],
  rankOf: (left: string, right: string) => number | undefined,
): string[] {
  /** Each part at the index of its first letter; empty at its other letters. */
  const parts = [...letters];
  /** Indices at which the neighbors of a part begin, at the index of its first letter. */
  const before = parts.map((_, at) => at - 1);
  const after = parts.map((_, at) => at + 1);
  const pairs = new Heap();

  function add(at: number): void {
    const left = parts[at];
    const right = parts[after[at]!];
    if (left === undefined || right === undefined) return;
    const rank = rankOf(left, right);
    if (rank !== undefined) pairs.push({ rank, at, left, right });
  }

  for (let at = 0; at + 1 < parts.length; at += 1) add(at);
  for (let pair = pairs.pop(); pair; pair = pairs.pop()) {
    const { at, left, right } = pair;
    const second = after[at]!;
    // Skip the pair if one of its parts has been merged with another part since: parts only grow.
    if (parts[at] !== left || parts[second] !== right) continue;
    parts[at] = left + right;
    parts[second] = '';
    after[at] = after[second]!;
    if (after[at] < parts.length) before[after[at]] = at;
    add(before[at]!);
    add(at);
  }
  return parts.filter((part) => part !== '');
}

/** A binary heap: the pair that comes first is at index 0, and each pair comes before those at 2i + 1 and 2i + 2. */
class Heap {
  readonly #pairs: Pair[] = [];

  push(pair: Pair): void {
    const pairs = this.#pairs;
    let at = pairs.length;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(pair, pairs[parent]!)) break;
      pairs[at] = pairs[parent]!;
      at = parent;
    }
    pairs[at] = pair;
  }

  pop(): Pair | undefined {
    const pairs = this.#pairs;
    const [first] = pairs;
    const last = pairs.pop();
    if (last === undefined || pairs.length === 0) return first;
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child + 1 < pairs.length && isBefore(pairs[child + 1]!, pairs[child]!)) child += 1;
      if (child >= pairs.length || !isBefore(pairs[child]!, last)) break;
      pairs[at] = pairs[child]!;
      at = child;
    }
    pairs[at] = last;
    return first;
  }
}
