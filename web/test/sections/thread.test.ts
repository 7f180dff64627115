import { load } from 'multihead';
import { beforeAll, describe, expect, it } from 'vitest';
import { unbent, type Bend } from '../../src/attention/bend.js';
import { createForward } from '../../src/attention/forward.js';
import { tracedSteps, type ForwardInput, type ForwardResult } from '../../src/attention/messages.js';
import { questionsOf } from '../../src/sections/gallery/questions.js';
import { explain } from '../../src/sections/steps/explain.js';
import { cellOf, goesOn, numberAt, threadOf } from '../../src/sections/steps/thread.js';

const tokens = 'I saw the dog and the dog ran'.split(' ');
let forward: (input: ForwardInput) => ForwardResult;
beforeAll(async () => {
  forward = createForward(await load());
});
const run = (bend: Partial<Bend> = {}, causal = false) =>
  forward({ tokens, heads: ['previous', 'first', 'same', 'nearby'], causal, bend: { ...unbent, ...bend } });

describe('the thread', () => {
  const selection = { query: 6, key: null, head: 2 };

  it('takes the largest weight, and each number is the operand of the next sum', () => {
    const result = run();
    const thread = threadOf(result, selection);
    expect(thread.key).toBe(3);
    const number = (name: (typeof tracedSteps)[number]) => numberAt(result, name, 2, cellOf(thread, name, result.headDim));
    expect(number('qHeads')).toBe(number('q'));
    expect(number('scaledScores')).toBeCloseTo(number('scores') / 4, 5);
    expect(number('headsOut')).toBe(number('merged'));
    // The left operand of the largest product is the number of the step before.
    for (const [name, before] of [
      ['q', 'x'],
      ['scores', 'qHeads'],
    ] as const) {
      const { product, lit } = explain(result, name, { ...cellOf(thread, name, result.headDim), head: 2 });
      expect(product!.left.data[lit!], name).toBe(number(before));
    }
    const { col } = cellOf(thread, 'merged', result.headDim);
    const { product, lit } = explain(result, 'output', { ...cellOf(thread, 'output', result.headDim), head: 2 }, col);
    expect([lit, product!.left.data[lit!]]).toEqual([col, number('merged')]);
  });

  it('says for every step how the number goes on, with the numbers of the engine', () => {
    const result = run();
    const thread = threadOf(result, { ...selection, key: 1 });
    expect(thread.key).toBe(1);
    for (const name of tracedSteps) expect(goesOn(result, name, thread).length, name).toBeGreaterThan(10);
    expect(goesOn(result, 'scores', thread)).toBe('divided by √16 = 4.');
    expect(goesOn(run({}, true), 'scaledScores', { ...thread, query: 0 })).toBe('the mask hides it.');
    expect(goesOn(run({ muted: [2] }), 'headsOut', thread)).toMatch(/^head 3 is muted/);
    const without = run({ withoutOutput: true });
    const still = threadOf(without, selection);
    expect(still.out).toBe(2 * 16 + still.handed);
    expect(goesOn(without, 'merged', still)).toMatch(/W_O is left out/);
  });
});

describe('the guess', () => {
  it('asks only about rows with a choice, a clear answer and a head that is not muted, and not about the word in view', () => {
    const questions = questionsOf(run({ muted: [0] }, true), 6);
    expect(questions.length).toBeGreaterThan(3);
    for (const { head, query } of questions) {
      expect(head).not.toBe(0);
      expect(query).not.toBe(6);
      // With the mask, earlier words have no choice of three.
      expect(query).toBeGreaterThan(1);
    }
    // With so high a temperature all weights are about equal.
    expect(questionsOf(run({ temperature: 100 }), 6)).toEqual([]);
  });
});
