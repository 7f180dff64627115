import { readFileSync } from 'node:fs';
import { load } from 'multihead';
import { beforeAll, describe, expect, it } from 'vitest';
import { reference } from '../../../tests/browser/reference.mjs';
import { unbent, type Bend } from '../../src/attention/bend.js';
import { createForward } from '../../src/attention/forward.js';
import type { ForwardResult } from '../../src/attention/messages.js';
import { colorOf } from '../../src/attention/patterns.js';
import { novelsTexts } from '../../src/attention/presets.js';
import { split } from '../../src/attention/tokens.js';
import { classes, vocabularyOf } from '../../src/attention/vocabulary.js';
import { marksOf } from '../../src/sections/sentence/looks.js';
import { withWord } from '../../src/sections/sentence/next_words.js';

const file = readFileSync(new URL('../../src/novels/novels.txt', import.meta.url), 'utf8');
const heads = [0, 1, 2, 3].map(colorOf);
let run: (text: string, layer?: number, bend?: Partial<Bend>) => ForwardResult;

beforeAll(async () => {
  const forward = createForward(await load(), () => file);
  run = (text, reads = 1, bend = {}) => forward({ reads, tokens: split(text), heads, causal: true, bend: { ...unbent, ...bend } });
});

describe('the words model', () => {
  it('predicts the same from either layer, and shares add up', () => {
    for (const text of [...novelsTexts, 'one', 'Unseen words zigzag 猫 12 “quoted” -- Mr. X']) {
      const [first, second] = [run(text, 0), run(text, 1)];
      expect(first.given!.layer).toBe(0);
      first.next!.words.forEach(({ word, share }, i) => {
        expect(second.next!.words[i]!.word).toBe(word);
        expect(second.next!.words[i]!.share).toBeCloseTo(share, 5);
      });
      const listed = second.next!.words.reduce((sum, { share }) => sum + share, 0);
      expect(listed + second.next!.unknown).toBeLessThan(1);
    }
  });

  it('shows heads whose weights are those of the model in float64, turned by RoPE', () => {
    const { trace, weights, tokens, given } = run(novelsTexts[0]!);
    const { q, k, weights: w } = trace;
    const n = tokens.length;
    const turned = ({ data }: typeof q, head: number, row: number): number[] => {
      const part = [...data.subarray(row * 64 + head * 16, row * 64 + head * 16 + 16)];
      return part.map((value, i) => {
        const angle = row / 10000 ** ((2 * (i % 8)) / 16);
        return value * Math.cos(angle) + (i < 8 ? -part[i + 8]! : part[i - 8]!) * Math.sin(angle);
      });
    };
    const last = Array.from({ length: n }, (_, key) => turned(q, 2, n - 1).reduce((sum, a, i) => sum + a * turned(k, 2, key)[i]!, 0) / 4);
    const sizes = last.map((score) => Math.exp(score - Math.max(...last)));
    const sum = sizes.reduce((a, b) => a + b);
    sizes.forEach((size, key) => expect(w.data[(2 * n + n - 1) * n + key]).toBeCloseTo(size / sum, 5));
    // The projections of x, without a rotation.
    const plain = reference({ x: trace.x.data, n, embedDim: 64, headDim: 16, heads: 4, causal: true, weights });
    expect(trace.q.data.every((value, i) => Math.abs(value - plain['q']![i]!) < 1e-4)).toBe(true);
    expect(given!.names).toHaveLength(4);
    expect(given!.lines).toHaveLength(4);
  });

  it('copies: a name that followed the same word before is likely, and less so without the heads that copy', () => {
    const whole = run(novelsTexts[0]!);
    const copying = whole.given!.names.flatMap((name, head) => (name === 'copies' ? [head] : []));
    expect(copying.length).toBeGreaterThan(0);
    const name = split(novelsTexts[0]!)[1]!;
    const shareOf = ({ next }: ForwardResult) => next!.words.find(({ word }) => word === name)?.share ?? 0;
    expect(whole.next!.words[0]!.word).toBe(name);
    expect(shareOf(run(novelsTexts[0]!, 1, { muted: copying }))).toBeLessThan(shareOf(whole) / 2);
  });

  it('gives every word one token: itself, its small letters, or a class by its form', () => {
    const idOf = vocabularyOf(['The', 'the', "don't", 'walked']);
    const first = classes.length;
    expect(['The', 'THE', 'the', 'don’t', 'Walked'].map(idOf)).toEqual([first, first + 1, first + 1, first + 2, first + 3]);
    const unknown = ['!?', '12', 'Anne’s', 'Anne', "dog's", 'going', 'asked', 'kindly', 'kindness', 'useful', 'larger', 'dogs', 'dog'];
    expect(unknown.map(idOf)).toEqual(classes.map((_, i) => i));
  });

  it('tells the words that it has not learned, and the line says so', () => {
    const result = run('She went to the Quokka with 12 quokkas');
    expect(result.given!.unknown).toEqual([4, 6, 7]);
    expect(marksOf(result, 7)).toBe(
      ' This model has not learned “Quokka”, “12”, “quokkas” (dotted): of such words it reads only the form, such as the ending.',
    );
    expect(marksOf(run('She went to the'), 3)).toBe('');
    expect(marksOf(run('She went to the'), 1)).toBe(' Struck words are hidden from it.');
  });

  it('writes words with spaces and signs without', () => {
    expect(withWord('She was ', 'not')).toBe('She was not');
    expect(withWord('She was', '.')).toBe('She was.');
    expect(withWord('She was', '--')).toBe('She was--');
    expect(withWord('She was--', 'not')).toBe('She was--not');
    expect(withWord('', 'She')).toBe('She');
  });
});
