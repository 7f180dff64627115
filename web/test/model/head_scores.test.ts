import { describe, expect, it } from 'vitest';
import { load } from 'multihead';
import { headStatistics } from 'multihead/lab';
import { headScores, sortedHeads } from '../../src/model/head_scores.js';

const ids = [3, 5, 3, 3, 5, 3];
const count = ids.length;
/** One layer of three heads: each row is a softmax of a formula over the visible keys. */
const data = Float32Array.from({ length: 3 * count * count }, (_, at) => {
  const [head, query, key] = [Math.floor(at / count ** 2), Math.floor(at / count) % count, at % count];
  const score = (k: number): number => Math.exp(2 * Math.sin(head + 1.7 * query + 0.9 * k));
  const sum = Array.from({ length: query + 1 }, (__, k) => score(k)).reduce((a, b) => a + b);
  return key <= query ? score(key) / sum : 0;
});
const weights = { shape: [1, 3, count, count], data };

describe('scores of heads', () => {
  it('are those of multihead/lab', async () => {
    const mh = await load();
    const found = mh.scope(() => headStatistics(mh, mh.tensor(data, [3, count, count]), { tokens: Int32Array.from(ids) }));
    const near = (got: Float32Array | undefined, wanted: ArrayLike<number>): void =>
      Array.from(wanted).forEach((value, head) => expect(got![head]).toBeCloseTo(value, 5));
    near(headScores(weights, ids, 'previous'), found.previousToken);
    near(headScores(weights, ids, 'first'), found.firstToken);
    near(headScores(weights, ids, 'induction'), found.induction!);
    // Its mean has the first query, too, whose entropy is 0.
    near(
      headScores(weights, ids, 'entropy'),
      Array.from(found.entropy, (value) => (value * count) / (count - 1)),
    );
  });

  it('count the weight on the token itself, from the second token on', () => {
    const own = [1, 2, 3, 4, 5].map((at) => data[at * count + at]!);
    expect(headScores(weights, ids, 'itself')![0]).toBeCloseTo(own.reduce((a, b) => a + b) / 5, 6);
  });

  it('are none for one token, and of induction for a text without a token that occurs twice', () => {
    expect(headScores({ shape: [1, 1, 1, 1], data: Float32Array.of(1) }, [4], 'previous')).toBeUndefined();
    expect(headScores(weights, [1, 2, 3, 4, 5, 6], 'induction')).toBeUndefined();
  });

  it('sort heads, the largest first, and of entropies the smallest', () => {
    expect(sortedHeads(Float32Array.of(0.2, 0.9, 0.5, 0.9), 'previous')).toEqual([1, 3, 2, 0]);
    expect(sortedHeads(Float32Array.of(0.2, 0.9, 0.5), 'entropy')).toEqual([0, 2, 1]);
  });
});
