// One head has one distribution of attention, so a word can only gain what another loses. Two heads have two distributions.

import { el } from '../dom/dom.js';
import { choice, sentence, slider } from './parts.js';
import { programsOf } from './program.js';
import type { MakeScene } from './stage.js';

const tokens = ['The', 'bank', 'by', 'the', 'river', 'approved', 'my', 'loan'];
const [bank, river, loan] = [1, 4, 7];
/** The score of a word that a head looks for, and of all others. */
const [high, low] = [5, 0];

/** Keys with one column, so that a query of 1 scores each word as its key says. */
function keysOf(lean: number): Float32Array {
  const keys = new Float32Array(tokens.length).fill(low);
  // At the ends, one of both words scores as low as the others.
  keys[loan] = low + (high - low) * Math.min(1, lean / 50);
  keys[river] = low + (high - low) * Math.min(1, (100 - lean) / 50);
  return keys;
}

export const compromise: MakeScene = (stage) => {
  const line = sentence(tokens);
  const heads = choice(stage, stage.words.plain('compromise.choice'), 'heads', [1, 2], 1, () => ask());
  const lean = slider(stage, stage.words.plain('compromise.do'), { name: 'lean', least: 0, most: 100, step: 1, otherwise: 50 }, () => ask());
  // With two heads, each has a word of its own.
  const inputs = () => (heads.now() === 1 ? [lean.value()] : [100, 0]).map((value) => inputOf(keysOf(value)));
  const inputOf = (keys: Float32Array) => ({
    q: { data: Float32Array.of(1), shape: [1, 1] },
    k: { data: keys, shape: [tokens.length, 1] },
    v: { data: keys, shape: [tokens.length, 1] },
  });

  function ask(): void {
    stage.ask(
      () => Promise.all(inputs().map((input) => stage.engine.attend(input))),
      (answers) => {
        const rows = answers.map(({ weights }) => weights);
        const [first, second] = [rows[0]!, rows.at(-1)!];
        line.show(rows, bank, ['head-previous', 'head-first']);
        lean.element.classList.toggle('is-idle', rows.length > 1);
        stage.say(rows.length > 1 ? 'compromise.live2' : 'compromise.live', {
          loan: stage.words.percent(first[loan]!),
          river: stage.words.percent(second[river]!),
          rest: stage.words.percent(Math.max(0, 1 - first[loan]! - first[river]!)),
        });
      },
    );
  }
  ask();
  return {
    figure: line.element,
    controls: el('div', { class: 'wrap story-controls' }, lean.element, heads.element),
    programs: () => programsOf(inputs()[0]!),
  };
};
