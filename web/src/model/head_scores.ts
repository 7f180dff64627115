// What the heads of a model do with a text: scores of their attention weights, as multihead/lab defines them.

import type { Matrix } from '../attention/matrix.js';
import type { ScoreName } from './limits.js';

/**
 * A score of each head, (layers · heads). The mean over the tokens of: the weight on the token before, on the first token, on the
 * token itself, on what followed earlier occurrences of the token (`induction`), and of the entropy of the weights in nats. The
 * first token has no choice and does not count. Undefined if the text has no such token.
 * @param weights (layers, heads, N, N)
 */
export function headScores({ shape, data }: Matrix, ids: readonly number[], name: ScoreName): Float32Array | undefined {
  const [layers, heads, count] = shape as [number, number, number];
  const positions = [...ids.keys()].filter((at) => at > 0 && (name !== 'induction' || ids.indexOf(ids[at]!) < at));
  if (positions.length === 0) return undefined;
  const keysOf = (at: number): number[] => {
    if (name === 'induction') return [...ids.keys()].filter((key) => key > 0 && key <= at && ids[key - 1] === ids[at]);
    return [{ previous: at - 1, first: 0, itself: at, entropy: 0 }[name]];
  };
  const keys = positions.map(keysOf);
  return Float32Array.from({ length: layers * heads }, (_, head) => {
    let sum = 0;
    positions.forEach((at, i) => {
      const from = (head * count + at) * count;
      if (name !== 'entropy') for (const key of keys[i]!) sum += data[from + key]!;
      else for (const weight of data.subarray(from, from + count)) if (weight > 0) sum -= weight * Math.log(weight);
    });
    return sum / positions.length;
  });
}

/** The heads in the order of a score: the largest first, of entropies the smallest. */
export function sortedHeads(scores: Float32Array, name: ScoreName): number[] {
  const sign = name === 'entropy' ? 1 : -1;
  return [...scores.keys()].sort((a, b) => sign * (scores[a]! - scores[b]!) || a - b);
}
