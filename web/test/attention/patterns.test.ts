import { describe, expect, it } from 'vitest';
import { blockSize, blockStart, embedDim, firstLetter } from '../../src/attention/embedding.js';
import { buildWeights, headDim, patternIds, patternOf, type PatternId } from '../../src/attention/patterns.js';
import { presets } from '../../src/attention/presets.js';
import { identityOf, tokenize } from '../../src/attention/tokens.js';
import { weightsOf } from './weights.js';

const distinct = Array.from({ length: 64 }, (_, i) => `w${i}`);
const repeating = Array.from({ length: 64 }, (_, i) => `w${(i * i + 3 * i) % 23}`);
const sentences = [...presets.map(({ text }) => tokenize(text).tokens), distinct, repeating, ['one'], ['a', 'b']];

/** Checks every row of every sentence, with and without the causal mask. */
function eachRow(id: PatternId, check: (weights: readonly number[], i: number, tokens: readonly string[], causal: boolean) => void): void {
  for (const tokens of sentences) {
    for (const causal of [false, true]) {
      weightsOf(id, tokens, causal).forEach((weights, i) => check(weights, i, tokens, causal));
    }
  }
}
const shareOf = (weights: readonly number[], targets: readonly number[]) => targets.reduce((sum, j) => sum + weights[j]!, 0);

describe('patterns', () => {
  it('previous: the word before; the first word itself', () => {
    eachRow('previous', (weights, i) => expect(weights[Math.max(0, i - 1)]).toBeGreaterThan(0.9));
  });

  it('next: the word after, or itself if that is hidden or missing', () => {
    eachRow('next', (weights, i, tokens, causal) => {
      const target = causal || i + 1 === tokens.length ? i : i + 1;
      expect(weights[target]).toBeGreaterThan(0.9);
    });
  });

  it('first: the first word', () => {
    eachRow('first', (weights) => expect(weights[0]).toBeGreaterThan(0.9));
  });

  it('itself: itself', () => {
    eachRow('itself', (weights, i) => expect(weights[i]).toBeGreaterThan(0.9));
  });

  it('same: the same word elsewhere, or itself', () => {
    eachRow('same', (weights, i, tokens, causal) => {
      const others = [...tokens.keys()].filter((j) => j !== i && !(causal && j > i) && identityOf(tokens[j]!) === identityOf(tokens[i]!));
      expect(shareOf(weights, others.length ? others : [i])).toBeGreaterThan(0.9);
    });
  });

  it('letter: equally to words with the same first letter', () => {
    eachRow('letter', (weights, i, tokens, causal) => {
      const alike = [...tokens.keys()].filter((j) => !(causal && j > i) && firstLetter(tokens[j]!) === firstLetter(tokens[i]!));
      expect(shareOf(weights, alike)).toBeGreaterThan(0.9);
      for (const j of alike) expect(weights[j]).toBeCloseTo(weights[i]!, 10);
    });
  });

  it('average: the same for every visible word', () => {
    eachRow('average', (weights, i, tokens, causal) => {
      expect(weights[i]).toBeCloseTo(1 / (causal ? i + 1 : tokens.length), 12);
    });
  });

  it('nearby: less with every step away, almost nothing beyond ten', () => {
    eachRow('nearby', (weights, i) => {
      for (let j = i + 1; j < Math.min(i + 6, weights.length); j += 1) {
        expect(weights[j]).toBeLessThanOrEqual(weights[j - 1]!);
      }
      const far = [...weights.keys()].filter((j) => Math.abs(j - i) > 10);
      expect(shareOf(weights, far)).toBeLessThan(0.15);
    });
  });

  it('are true softmaxes: no weight is 0, and only a single visible word has weight 1', () => {
    for (const id of patternIds) {
      for (const row of weightsOf(id, tokenize(presets[2]!.text).tokens, false)) {
        for (const weight of row) {
          expect(weight).toBeGreaterThan(0);
          expect(weight).toBeLessThan(1);
        }
      }
    }
  });

  it('keep scores small enough for float32', () => {
    const largest = Math.max(...patternIds.flatMap((id) => [...patternOf(id).query()].map(Math.abs)));
    expect(largest).toBeLessThanOrEqual(14);
  });
});

describe('buildWeights', () => {
  const { qProj, vProj, outProj } = buildWeights(['first', 'letter', 'same']);

  it('has the shapes of the parameters', () => {
    expect(qProj.length).toBe(3 * headDim * embedDim);
    expect(outProj.length).toBe(embedDim * 3 * headDim);
  });

  it('stacks the heads in the order given', () => {
    expect(qProj.slice(0, headDim * embedDim)).toEqual(patternOf('first').query());
    expect(vProj[headDim * embedDim + blockStart('letter')]).toBe(1);
  });

  it('writes the outputs of heads back to their blocks, as a mean', () => {
    const at = (row: number, col: number) => outProj[row * 3 * headDim + col];
    expect(at(blockStart('word'), 0)).toBe(0.5);
    expect(at(blockStart('letter'), headDim)).toBe(1);
    expect(at(blockStart('word') + 1, 2 * headDim + 1)).toBe(0.5);
    expect(outProj.filter((value) => value !== 0).length).toBe(3 * blockSize);
  });
});
