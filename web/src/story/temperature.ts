// Why scores are divided by √d: the divisor decides how sharp a softmax is.

import { el } from '../dom/dom.js';
import { createSharedBar } from '../maps/shared_bar.js';
import { bars, slider } from './parts.js';
import { programsOf } from './program.js';
import type { MakeScene } from './stage.js';

const words = ['the', 'black', 'cat', 'sat', 'on', 'a', 'warm', 'mat'];
/** Scores as a head of 16 columns has them before training: sums of 16 products of numbers of about 1. */
const scores = Float32Array.of(1.3, -4.2, 6.9, 3.1, -1.8, 0.4, 5.2, -2.6);
/** The slider counts quarters of a power of two, from ¼ to 64. */
const divisorOf = (place: number): number => 2 ** (place / 4);

export const temperature: MakeScene = (stage) => {
  const shown = (divisor: number): string => stage.words.number(divisor, Number.isInteger(divisor) ? 0 : 2);
  const list = bars(words.map((word, i) => `${word} ${stage.words.number(scores[i]!, 1)}`));
  const whole = createSharedBar();
  const range = { name: 'divisor', least: -8, most: 24, step: 1, otherwise: 8, spoken: (place: number) => shown(divisorOf(place)) };
  const divisor = slider(stage, stage.words.plain('temperature.do'), range, () => ask());
  const input = () => ({
    q: { data: Float32Array.of(1), shape: [1, 1] },
    k: { data: scores, shape: [words.length, 1] },
    v: { data: scores, shape: [words.length, 1] },
    scale: 1 / divisorOf(divisor.value()),
  });

  function ask(): void {
    stage.ask(
      () => stage.engine.attend(input()),
      ({ weights }) => {
        list.show(weights);
        whole.show(weights, words, 'story-whole', null);
        const entropy = weights.reduce((sum, weight) => sum - (weight > 0 ? weight * Math.log(weight) : 0), 0);
        stage.say('temperature.live', {
          divisor: shown(divisorOf(divisor.value())),
          top: stage.words.percent(Math.max(...weights)),
          n: stage.words.number(Math.exp(entropy), 1),
        });
      },
    );
  }
  ask();
  return {
    figure: el('div', { class: 'column story-column' }, list.element, whole.element),
    controls: divisor.element,
    programs: () => programsOf(input()),
  };
};
