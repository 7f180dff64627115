import { load } from 'multihead';
import { beforeAll, describe, expect, it } from 'vitest';
import { unbent, type Bend } from '../../src/attention/bend.js';
import { createForward } from '../../src/attention/forward.js';
import { tracedSteps, type ForwardInput, type ForwardResult } from '../../src/attention/messages.js';
import { carries, explain } from '../../src/sections/steps/explain.js';

const tokens = 'I saw the dog and the dog ran'.split(' ');
const plain: ForwardInput = {
  ...{ tokens, heads: ['previous', 'first', 'same', 'nearby'], causal: false, bend: unbent },
};

let forward: (input: ForwardInput) => ForwardResult;
beforeAll(async () => {
  forward = createForward(await load());
});

const run = (change: Partial<ForwardInput> = {}, bend: Partial<Bend> = {}) => forward({ ...plain, ...change, bend: { ...unbent, ...bend } });
const numberOf = (text: string) => Number(text.replace('−', '-'));

describe('explain', () => {
  it('gives terms that add up to the number, for every step that is a sum', () => {
    const result = run();
    for (const name of ['q', 'k', 'v', 'scores', 'headsOut', 'output'] as const) {
      const cols = result.trace[name].shape.at(-1)!;
      const perHead = result.trace[name].shape.length === 4;
      for (const [row, col] of [
        [0, 0],
        [6, 3],
        [7, cols - 1],
      ] as const) {
        const { terms } = explain(result, name, { row, col, head: 2 });
        const { rows, total } = terms!();
        const value = result.trace[name].data[((perHead ? 2 * tokens.length : 0) + row) * cols + col]!;
        expect(Math.abs(numberOf(total) - value), `${name} ${row} ${col}`).toBeLessThan(1e-3);
        const sum = rows.reduce((all, cells) => all + numberOf(cells.at(-1)!), 0);
        expect(Math.abs(sum - value), `${name}, its terms`).toBeLessThan(0.01);
      }
    }
  });

  it('names three terms of a sum and counts all others that are not 0', () => {
    const result = run();
    for (const [row, col] of tokens.flatMap((_, query) => tokens.map((_word, key) => [query, key] as const))) {
      const { first = '', why, product } = explain(result, 'scores', { row, col, head: 3 });
      const terms = Array.from(product!.left.data, (value, i) => value * product!.right.data[i]!).filter((term) => term !== 0);
      const named = `${first}${why}`.match(/·/g)?.length ?? 0;
      expect(named + Number(/(\d+) more$/.exec(why)?.[1] ?? 0), `${row} ${col}`).toBe(terms.length);
    }
    const tiny = {
      ...result,
      trace: { ...result.trace, qHeads: { ...result.trace.qHeads, data: result.trace.qHeads.data.map((value) => value * 1e-9) } },
    };
    expect(explain(tiny, 'scores', { row: 0, col: 0, head: 0 }).why).toBe('Every product is nearly 0.');
  });

  it('has a sentence for every step, and counts from 1', () => {
    const result = run();
    for (const name of tracedSteps) {
      const { first = '', why } = explain(result, name, { row: 6, col: 2, head: 1 });
      expect((first + why).length, name).toBeGreaterThan(5);
    }
    expect(explain(result, 'kHeads', { row: 0, col: 0, head: 1 }).why).toContain('column 17 of k');
    expect(explain(result, 'merged', { row: 0, col: 16, head: 0 }).why).toMatch(/^Head 2 .*column 1 /);
  });

  it('says why a word may or may not be looked at', () => {
    const at = { row: 2, col: 6, head: 0 };
    expect(explain(run(), 'maskedScores', at).why).toBe('This word may be looked at, so its score stays.');
    expect(explain(run({ causal: true }), 'maskedScores', at).why).toMatch(/^dog₇ comes after the₃, .*−∞/);
    expect(explain(run({}, { window: 1 }), 'maskedScores', at).why).toMatch(/^dog₇ is more than 1 words away/);
    expect(explain(run({ causal: true }), 'weights', at).why).toMatch(/exactly 0/);
  });

  it('follows what is bent', () => {
    const at = { row: 6, col: 2, head: 0 };
    expect(explain(run(), 'scaledScores', at).why).toMatch(/divided by √16 = 4\.$/);
    expect(explain(run({}, { divisor: 'model', temperature: 2 }), 'scaledScores', at).why).toMatch(/√64 = 8 and the temperature 2\.$/);
    // The bars of a row shrink by the divisor, and hidden ones are gone.
    for (const { share, start } of explain(run(), 'scaledScores', at).bars!) expect(share).toBeCloseTo(start! / 4, 6);
    const masked = explain(run({ causal: true }), 'maskedScores', at).bars!.filter(({ key }) => key > 6);
    expect(masked.every(({ share, note }) => share === -Infinity && note === '−∞')).toBe(true);
    const edits = [{ head: 0, query: 6, key: 2, weight: 0.5 }];
    expect(explain(run({}, { edits }), 'weights', at).why).toMatch(/by hand/);
    expect(explain(run({}, { muted: [1] }), 'merged', { ...at, col: 20 }).why).toMatch(/^Head 2 is muted/);
    expect(explain(run({}, { withoutOutput: true }), 'output', at).why).toMatch(/W_O is left out/);
  });

  it('writes the softmax with the largest score subtracted', () => {
    const { why, terms } = explain(run(), 'weights', { row: 6, col: 5, head: 0 });
    expect(why).toMatch(/^e⁰ ÷ 1\.\d+\. The row’s largest score, \d+\.\d+, is subtracted first; the result is the same\.$/);
    expect(numberOf(terms!().total)).toBeCloseTo(1, 3);
    const { bars, whole } = explain(run(), 'weights', { row: 6, col: 5, head: 0 });
    expect(bars!.map(({ key }) => key)).toEqual([...bars!.map(({ key }) => key)].sort((a, b) => a - b));
    expect(Math.max(...bars!.map(({ share }) => share))).toBe(1);
    expect(whole!.weights.reduce((a, b) => a + b)).toBeCloseTo(1, 5);
  });
});

describe('carries', () => {
  const shares = (text: string) => [...text.matchAll(/(\d+)\u00a0% (\S+?)[, ]/g)].map(([, share, name]) => [Number(share), name]);

  it('adds up to the whole, the largest first', () => {
    const text = carries(run(), 6);
    expect(text).toMatch(/^dog₇ is /);
    const list = shares(text).map(([share]) => share as number);
    expect(list).toEqual([...list].sort((a, b) => b - a));
    const all = [...text.matchAll(/(\d+)\u00a0%/g)].reduce((sum, [, share]) => sum + Number(share), 0);
    expect(all).toBe(100);
  });

  it('counts only heads that are not muted', () => {
    expect(carries(run({}, { muted: [0, 2, 3] }), 6)).toBe('dog₇ is 100\u00a0% I, averaged over the heads in use.');
    expect(carries(run({}, { muted: [0, 1, 2, 3] }), 6)).toMatch(/^Every head is muted/);
  });
});
