// Four heads that start as noise and find their jobs: the training of the page, in a small form.

import { colorOf } from '../attention/patterns.js';
import { el, setText } from '../dom/dom.js';
import { mapOf, valueAt } from '../training/curve.js';
import { sequenceLength } from '../training/messages.js';
import { defaultSeed, factsOf } from '../training/settings.js';
import { accuracyAt, decimalsOf, earnedBy, type TrainingView } from '../training/view.js';
import { smallMap } from './parts.js';
import { jobPrograms } from './program.js';
import type { MakeScene } from './stage.js';

const { steps, patterns, tokens } = factsOf('fourJobs');
/** The names of the jobs in the texts, in the order of the patterns. */
const names = ['previous', 'two', 'vowel', 'star'] as const;

export const jobs: MakeScene = (stage) => {
  const { words, engine } = stage;
  const { training } = engine;
  const maps = patterns.map((_, head) => smallMap(head, colorOf(head)));
  const button = el('button', { class: 'primary', onclick: press }, words.plain('jobs.train'));
  const percent = (share: number): string => words.percent(share, decimalsOf(share));
  const isDone = ({ step }: TrainingView): boolean => step >= steps;

  function press(): void {
    const view = training.view.get();
    if (view.status === 'running') return training.pause();
    if (isDone(view)) void training.reset(view.curve.settings, true);
    else void training.train();
  }

  function jobOf(view: TrainingView, head: number): string {
    const earned = earnedBy(view, head).map((name) => names[patterns.findIndex((pattern) => pattern.name === name)]!);
    return earned.map((name) => words.plain(`jobs.${name}`)).join(', ') || words.plain('jobs.none');
  }

  training.view.watch((view) => {
    const running = view.status === 'running';
    if (running && isDone(view)) training.pause();
    setText(button, words.plain(running ? 'jobs.pause' : isDone(view) ? 'mask.again' : 'jobs.train'));
    const titles = maps.map((_, head) => jobOf(view, head));
    maps.forEach(({ show }, head) => {
      const weights = view.shown ? mapOf(view.shown.maps, head) : new Float32Array(sequenceLength ** 2);
      const letters = Array.from({ length: sequenceLength }, (_, i) => tokens[view.tokens[i] ?? -1] ?? '');
      show(titles[head]!, weights, letters, `${words.plain('head', { n: head + 1 })}: ${titles[head]}`);
    });
    const right = accuracyAt(view, view.curve);
    if (view.message !== '') return stage.say('failed', { why: view.message }, null);
    if (right === undefined || view.step === 0) return stage.say('jobs.wait', {}, null);
    const small = valueAt(view.smallerRun?.accuracy ?? [], view.step);
    const found = titles.filter((title) => title !== words.plain('jobs.none')).length;
    stage.say('jobs.live', { step: view.step, right: percent(right), small: small === undefined ? '–' : percent(small) }, { n: found });
  });
  return {
    figure: el('div', { class: 'story-maps is-large' }, ...maps.map(({ element }) => element)),
    controls: el('div', { class: 'wrap story-controls' }, button),
    start: press,
    programs: () => jobPrograms(defaultSeed),
    onPage: '#at=train',
  };
};
