// Two models learn the same language. One has the causal mask; the other sees the letter that it must guess.

import { el, setText } from '../dom/dom.js';
import type { Guesses, Peeked } from '../training/peek.js';
import { bars } from './parts.js';
import { maskProgram } from './program.js';
import type { MakeScene } from './stage.js';

/** Steps between two drawings, and of the whole training. */
const [stepsAtOnce, allSteps] = [2, 100];

export const mask: MakeScene = (stage) => {
  const { words } = stage;
  const kinds = [words.plain('mask.training'), words.plain('mask.writing')];
  const models = (['with', 'without'] as const).map((name, i) => {
    const list = bars(kinds);
    const title = el('h3', {}, words.plain(`mask.${name}`));
    return { list, element: el('div', { class: `story-model head-${i === 0 ? 'same' : 'itself'}` }, title, list.element) };
  });
  const button = el('button', { class: 'primary', onclick: train }, words.plain('mask.train'));
  let busy = false;

  const show = ({ list }: (typeof models)[number], { training, writing }: Guesses): void => list.show([training, writing]);
  function showAll({ step, masked, peeking }: Peeked): void {
    show(models[0]!, masked);
    show(models[1]!, peeking);
    const share = { peeks: peeking.training, honest: masked.training, written: peeking.writing, honestwritten: masked.writing };
    const texts = Object.fromEntries(Object.entries(share).map(([name, value]) => [name, words.percent(value)]));
    stage.say('mask.live', { step, ...texts }, texts);
  }

  function setBusy(now: boolean): void {
    busy = now;
    button.setAttribute('aria-disabled', String(now));
  }

  function train(): void {
    if (busy) return;
    setBusy(true);
    setText(button, words.plain('mask.again'));
    const go = (step: number): void =>
      stage.ask(
        () =>
          stage.engine.peek(stepsAtOnce, step === 0).catch((error: unknown) => {
            setBusy(false);
            throw error;
          }),
        (peeked) => {
          showAll(peeked);
          if (peeked.step < allSteps) requestAnimationFrame(() => go(peeked.step));
          else setBusy(false);
        },
      );
    go(0);
  }
  for (const model of models) model.list.show([0, 0], () => '–');
  stage.say('mask.wait', {}, null);
  return {
    figure: el('div', { class: 'story-pair' }, ...models.map(({ element }) => element)),
    controls: el('div', { class: 'wrap story-controls' }, button),
    start: train,
    programs: () => [maskProgram(allSteps)],
  };
};
