// The loss chart of a training with its comparison lines, the scrubber below it, and the buttons that run the training.

import { formatNumber, formatPercent } from '../../base/format.js';
import { choiceOf } from '../../controls/choice.js';
import { choose } from '../../controls/source_switch.js';
import { el, refill, setText } from '../../dom/dom.js';
import { goToElement } from '../../page/places.js';
import { whenChanged, type App } from '../../state/app.js';
import type { Curve } from '../../training/curve.js';
import { mostSteps } from '../../training/session.js';
import { describeSettings, factsOf } from '../../training/settings.js';
import { accuracyAt, percent, type TrainingView } from '../../training/view.js';
import { createLineChart, type ChartLine } from './line_chart.js';
import { mutedBriefly } from './train_proof.js';

export function trainChart(app: App): HTMLElement {
  const chart = createLineChart((step) => app.training.goTo(step));
  const keys = el('ul', { class: 'wrap chart-keys' });
  // The run before has its place below the chart, so that the chart stays where it is.
  const before = el('ul', { class: 'wrap line chart-keys chart-before' });
  const conclusion = el('p', { class: 'hint' });
  const watch = el('button', { class: 'secondary', id: 'train-watch' }, 'See them read your sentence');
  watch.addEventListener('click', () => {
    choose(app, 'trained');
    goToElement(document.getElementById('your-sentence'));
  });
  const draw = (): void => {
    const view = app.training.view.get();
    const { train, chart: what } = app.state.get();
    if (train !== view.curve.settings.kind) return;
    const top = what === 'loss' ? Math.log(factsOf(train).vocabSize) * 1.1 : 1;
    const curves = linesOf(view).map(({ name, curve }) => ({ name, points: what === 'loss' ? curve.lossPoints : curve.accuracy }));
    chart.show({
      ...{ lines: curves, top, mark: view.step, lastStep: lastStepOf(view), label: inWords(view) },
      title: what === 'loss' ? 'loss' : 'right',
      format: what === 'loss' ? (value) => formatNumber(value, 1) : formatPercent,
    });
    showKeys(app, keys, view, false);
    showKeys(app, before, view, true);
    setText(conclusion, conclusionOf(view));
    // Its room stays.
    watch.classList.toggle('is-idle', typeof app.sources.get().trained === 'string');
  };
  app.training.view.watch(draw);
  whenChanged(app, ['chart'], draw);
  return el(
    'div',
    { class: 'close train-run' },
    el('div', { class: 'row apart low chart-head' }, keys, whatSwitch(app)),
    chart.element,
    scrubber(app),
    before,
    el('div', { class: 'row apart' }, conclusion, watch),
  );
}

interface NamedCurve {
  readonly name: ChartLine['name'];
  readonly curve: Curve;
}

function linesOf({ curve, smallerRun, earlier }: TrainingView): NamedCurve[] {
  const all = [
    { name: 'earlier', curve: earlier },
    { name: 'smaller', curve: smallerRun },
    { name: 'main', curve },
  ];
  return all.filter((line): line is NamedCurve => line.curve !== undefined);
}

function lastStepOf(view: TrainingView): number {
  const { steps } = factsOf(view.curve.settings.kind);
  return Math.max(steps, ...linesOf(view).map(({ curve }) => curve.losses.length));
}

function numbersOf(view: TrainingView, { curve }: NamedCurve): { loss: number; accuracy: number } | undefined {
  const loss = curve.losses[Math.min(view.step, curve.losses.length) - 1];
  const accuracy = accuracyAt(view, curve);
  return loss === undefined || accuracy === undefined ? undefined : { loss, accuracy };
}

const titles = { main: '', smaller: 'beside it: ', earlier: 'before: ' } as Readonly<Record<string, string>>;

function inWords(view: TrainingView): string {
  const parts = linesOf(view).map((line) => {
    const numbers = numbersOf(view, line);
    const text = numbers ? `loss ${formatNumber(numbers.loss)}, ${percent(numbers.accuracy)} right` : 'not trained yet';
    return `${titles[line.name]}${describeSettings(line.curve.settings)}: ${text}`;
  });
  return `Training curves at step ${view.step}. ${parts.reverse().join('. ')}.`;
}

/** Shows one legend entry for each line, with its value at the step shown: only the run before, or all others. */
function showKeys(app: App, keys: HTMLElement, view: TrainingView, isBefore: boolean): void {
  const lines = linesOf(view)
    .reverse()
    .filter(({ name }) => (name === 'earlier') === isBefore);
  if (keys.childElementCount !== lines.length || keys.dataset['names'] !== namesOf(lines)) {
    keys.dataset['names'] = namesOf(lines);
    refill(keys, ...lines.map((line) => keyOf(app, line)));
  }
  lines.forEach((line, i) => {
    const numbers = numbersOf(view, line);
    const place = keys.children[i]!.querySelector('.key-numbers')!;
    setText(place, numbers ? `${percent(numbers.accuracy)} right, loss ${formatNumber(numbers.loss)}` : '');
  });
}

const namesOf = (lines: readonly NamedCurve[]): string => lines.map(({ name, curve }) => `${name} ${describeSettings(curve.settings)}`).join('; ');

function keyOf(app: App, { name, curve }: NamedCurve): HTMLElement {
  const drop = el(
    'button',
    { class: 'link', 'aria-label': 'Take the run before off the chart', onclick: () => app.training.dropEarlier() },
    'remove',
  );
  return el(
    'li',
    { class: `chart-key line-${name}` },
    el('span', { class: 'key-line', 'aria-hidden': 'true' }),
    el(
      'span',
      { class: 'wrap key-text' },
      el('span', {}, titles[name] ?? '', el('strong', {}, describeSettings(curve.settings))),
      el('span', { class: 'key-numbers number' }),
      ...(name === 'earlier' ? [drop] : []),
    ),
  );
}

function conclusionOf({ smallerRun, curve }: TrainingView): string {
  if (!smallerRun) return '';
  return curve.settings.kind === 'fourJobs'
    ? 'The 1-head model has as many weights, but can look at one place at a time: too few for four jobs.'
    : 'One layer cannot do this: the second layer looks for what the first has written into each position.';
}

function whatSwitch(app: App): HTMLElement {
  const options = [
    { value: 'loss', label: 'Loss' },
    { value: 'accuracy', label: 'Right answers' },
  ] as const;
  return choiceOf(app, 'chart', options, { role: 'group', 'aria-label': 'The chart shows' });
}

function scrubber(app: App): HTMLElement {
  const slider = el('input', { type: 'range', id: 'train-moment', class: 'scrubber', min: 0, value: 0 });
  // The last requested step; the screen follows in the next frame.
  let at = 0;
  slider.addEventListener('input', () => app.training.goTo(Number(slider.value)));
  // Saved moments can be many steps apart, so an arrow key goes to the next moment instead of the next step.
  slider.addEventListener('keydown', (event) => {
    const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (direction === undefined) return;
    event.preventDefault();
    const { moments } = app.training.view.get();
    const next = direction > 0 ? moments.find((step) => step > at) : moments.findLast((step) => step < at);
    if (next === undefined) return;
    at = next;
    app.training.goTo(next);
  });
  app.training.view.watch((view) => {
    at = view.step;
    slider.max = String(lastStepOf(view));
    slider.value = String(view.step);
    slider.disabled = view.moments.length < 2;
    slider.setAttribute('aria-valuetext', `step ${view.step}`);
  });
  return el('div', { class: 'scrub' }, el('label', { class: 'sr-only', for: 'train-moment' }, 'Go back to a saved moment'), slider);
}

export function runButtons(app: App): HTMLElement {
  const { training } = app;
  const train = el('button', { class: 'primary', id: 'train-go' }, 'Train');
  const one = el('button', { class: 'secondary', id: 'train-step', onclick: () => void training.step() }, 'One step');
  const anew = el('button', { class: 'secondary', id: 'train-anew' }, 'Start over');
  const place = el('p', { class: 'hint train-place number' });
  const news = el('p', { class: 'sr-only', role: 'status' });
  const failure = el('p', { class: 'notice is-failure', id: 'train-failure', role: 'alert', hidden: true });
  train.addEventListener('click', () => {
    if (training.view.get().status === 'running') training.pause();
    else void training.train();
  });
  anew.addEventListener('click', () => {
    void training.reset(training.view.get().curve.settings).then(() => training.startWorkers());
  });
  training.view.watch((view, previous) => {
    const { status, step, last, message, milliseconds } = view;
    const right = (view.measured ?? view.shown)?.accuracy;
    const accuracy = right === undefined || step === 0 ? '' : ` · ${percent(right)} right`;
    const running = status === 'running';
    const { steps } = factsOf(view.curve.settings.kind);
    const atEnd = step >= mostSteps;
    setText(train, running ? 'Pause' : step >= steps ? 'Train on' : 'Train');
    train.disabled = !running && atEnd;
    one.disabled = running || atEnd;
    setText(anew, status === 'lost' ? 'Start again' : 'Start over');
    const seconds = milliseconds > 0 && !running ? ` in ${(milliseconds / 1000).toFixed(1)} s` : '';
    const run = (step < last ? `Step ${step} of ${last}` : `Step ${step}${seconds}`) + accuracy;
    setText(place, mutedBriefly(view) || run);
    setText(failure, message);
    failure.hidden = message === '';
    if (step === 0) setText(news, '');
    else if (view.measured && view.measured !== previous?.measured) setText(news, `Step ${step}: ${percent(view.measured.accuracy)} right.`);
  });
  return el('div', { class: 'dock run-box' }, el('div', { class: 'row run-buttons' }, train, one, anew, place), news, failure);
}
