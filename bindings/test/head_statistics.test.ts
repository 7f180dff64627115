import { headStatistics } from 'multihead/lab';
import { describe, expect, it } from 'vitest';
import { builds, expectRefused, loadBuild } from './builds.ts';
import { random, runSeed } from './random.ts';
import { caseCount, filled } from './random_case.ts';
import { maxDifference } from './reference.ts';

const mean = (values: number[]): number => (values.length === 0 ? 0 : values.reduce((a, b) => a + b) / values.length);

/** Computes the statistics by their definitions, in float64. */
function expected(weights: Float32Array, [batch, heads, queries, keys]: readonly [number, number, number, number], tokens: Int32Array) {
  const statistics = Array.from({ length: heads }, (_, h) => {
    const [entropy, previous, first, induction]: number[][] = [[], [], [], []];
    for (let b = 0; b < batch; b += 1) {
      const text = tokens.subarray(b * keys, (b + 1) * keys);
      for (let i = 0; i < queries; i += 1) {
        const from = ((b * heads + h) * queries + i) * keys;
        const row = [...weights.subarray(from, from + keys)];
        const position = i + keys - queries;
        entropy?.push(row.reduce((sum, w) => sum - (w > 0 ? w * Math.log(w) : 0), 0));
        if (position === 0) continue;
        previous?.push(row[position - 1] as number);
        first?.push(row[0] as number);
        const behind = row.filter((_, j) => j > 0 && j <= position && text[j - 1] === text[position]);
        if (behind.length > 0) induction?.push(behind.reduce((a, w) => a + w));
      }
    }
    return [entropy, previous, first, induction].map((values) => mean(values ?? []));
  });
  const column = (at: number) => Float64Array.from(statistics, (row) => row[at] as number);
  const [entropy, previousToken, firstToken, induction] = [0, 1, 2, 3].map(column);
  return { entropy, previousToken, firstToken, induction };
}

describe.each(builds)('headStatistics, %s', async (simd) => {
  const mh = await loadBuild(simd);

  it(`agrees with the definitions (MULTIHEAD_SEED=${runSeed})`, () => {
    for (let round = 0; round < caseCount(40); round += 1) {
      const r = random(runSeed + round);
      const queries = r.int(1, 12);
      const shape = [r.int(1, 3), r.int(1, 4), queries, queries + r.pick([0, 0, 1, 5])] as const;
      const [batch, heads, , keys] = shape;
      const width = 4;
      mh.scope(() => {
        const { weights } = mh.attention(
          ...([filled(r, batch, heads, queries, width), filled(r, batch, heads, keys, width)] as const),
          filled(r, batch, heads, keys, width),
          { causal: 'bottomRight', return: ['weights'], scale: 3 },
        );
        const tokens = Int32Array.from({ length: batch * keys }, () => r.int(0, 3));
        const wanted = expected(weights.data, shape, tokens);
        const actual = headStatistics(mh, weights, { tokens });
        expect(Object.keys(actual)).toEqual(Object.keys(wanted));
        for (const name of ['entropy', 'previousToken', 'firstToken', 'induction'] as const) {
          const off = maxDifference(actual[name] ?? [], wanted[name] ?? []);
          expect(off, `${name}, seed ${runSeed + round}: (${shape})`).toBeLessThan(2e-6);
        }
        const { induction: _, ...rest } = actual;
        expect(headStatistics(mh, weights)).toEqual(rest);
      });
    }
    expect(mh.memory()).toMatchObject({ live: 0, bytes: 0 });
  });

  it('takes the weights of an unbatched call', () => {
    // Head 0 attends to the first token, head 1 to the previous one.
    const rows = [...[1, 0, 0, 1, 0, 0, 1, 0, 0], ...[1, 0, 0, 1, 0, 0, 0, 1, 0]];
    const weights = { shape: [2, 3, 3], data: new Float32Array(rows) };
    const { entropy, previousToken, firstToken } = headStatistics(mh, weights);
    expect([...entropy]).toEqual([0, 0]);
    expect([...previousToken]).toEqual([0.5, 1]);
    expect([...firstToken]).toEqual([1, 0.5]);
  });

  it('refuses weights and tokens that do not fit', () => {
    const r = random(1);
    const weights = filled(r, 1, 2, 3, 4);
    const refused = (fn: () => unknown, code: 'E_SHAPE' | 'E_OPTION', name: string, ...words: string[]) =>
      expectRefused(mh, fn, code, name, ...words);
    refused(() => headStatistics(mh, filled(r, 3, 4)), 'E_SHAPE', 'weights', '(B, H, N_q, N_k)');
    refused(() => headStatistics(mh, filled(r, 1, 2, 4, 3)), 'E_SHAPE', 'weights', 'N_q <= N_k');
    refused(() => headStatistics(mh, new Float32Array(24) as never), 'E_OPTION', 'weights');
    const tokens = (length: number) => () => headStatistics(mh, weights, { tokens: new Int32Array(length) });
    refused(tokens(3), 'E_SHAPE', 'tokens', '4 values', '3 values');
    refused(tokens(0), 'E_SHAPE', 'tokens', '4 values', '0 values');
    refused(() => headStatistics(mh, weights, { tokens: [1] as never }), 'E_OPTION', 'tokens');
    refused(() => headStatistics(mh, weights, { token: 1 } as never), 'E_OPTION', 'token', 'tokens');
  });
});
