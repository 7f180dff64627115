// The map of the whole flow, from x to the output. Its stops are the tabs of "Step through", each with its number of the thread.
// Above it is a slider over the same stops, between the buttons for the previous and the next step.

import { formatNumber, formatShape } from '../../base/format.js';
import { el, moved, rich, setText, svg } from '../../dom/dom.js';
import { whenSeen } from '../../dom/when_seen.js';
import { inView, update, whenViewed, withNumbers, type App } from '../../state/app.js';
import type { StepId } from '../../state/page_state.js';
import { stepOf, steps } from './steps.js';
import { cellOf, numberAt, threadOf } from './thread.js';

const indexOf = (app: App): number => steps.findIndex(({ id }) => id === app.state.get().step);

function goTo(app: App, index: number, burst?: string): void {
  const step = steps[Math.max(0, Math.min(steps.length - 1, index))]!;
  update(app, { step: step.id }, burst);
}

/** Draws the path of the values, which bypass the scores: from the step "split" to the step "values". */
function valuesPath(): SVGSVGElement {
  const at = (id: StepId) => (steps.findIndex((step) => step.id === id) + 0.5) * 10;
  const [from, to] = [at('split'), at('values')];
  return svg(
    'svg',
    { class: 'flow-way', viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    svg('path', { d: `M${from} 10V5Q${from} 1 ${from + 1.5} 1H${to - 1.5}Q${to} 1 ${to} 5V10`, 'vector-effect': 'non-scaling-stroke' }),
  );
}

export function flowMap(app: App): HTMLElement {
  const values = steps.map(() => el('span', { class: 'number hint step-value' }));
  const tabs = steps.map(({ id, symbol, title }, index) => {
    const shape = el('span', { class: 'step-shape' });
    app.result.watch((result) => {
      if (result) shape.textContent = formatShape(result.trace[stepOf(id).parts[0]!.trace].shape);
    });
    return el(
      'button',
      { role: 'tab', class: 'column step', id: `step-${id}`, 'aria-controls': 'step-detail', onclick: () => goTo(app, index) },
      el('span', { class: 'number hint step-number', 'aria-hidden': 'true' }, String(index + 1)),
      el('span', { class: 'step-symbol' }, ...rich(symbol)),
      el('span', { class: 'sr-only' }, `, ${title}, shape `, shape, ', '),
      values[index]!,
    );
  });
  const list = el('div', { class: 'step-list', role: 'tablist', 'aria-label': 'Steps' }, ...tabs);
  list.addEventListener('keydown', (event) => {
    const target = moved(event, indexOf(app), steps.length, { down: 'ArrowDown', up: 'ArrowUp' });
    if (target === undefined) return;
    event.preventDefault();
    goTo(app, target, event.repeat ? 'hold an arrow key' : undefined);
    tabs[target]!.focus();
  });
  /** The way of the number so far. */
  const drawn = el('span', { class: 'flow-thread', 'aria-hidden': 'true' });
  list.prepend(drawn);
  const count = withNumbers(app, (result) => {
    const thread = threadOf(result, inView(app, result));
    steps.forEach(({ parts }, index) => {
      const { trace } = parts[0]!;
      setText(values[index]!, formatNumber(numberAt(result, trace, thread.head, cellOf(thread, trace, result.headDim))));
    });
  });
  whenViewed(app, whenSeen(list, count));
  // A phone shows it below the stops, because the text of the step is below the map there.
  const here = el('p', { class: 'narrow cut step-here', 'aria-hidden': 'true' });
  app.state.watch(({ step }, previous) => {
    if (step === previous?.step) return;
    here.textContent = `${indexOf(app) + 1}. ${stepOf(step).title}`;
    drawn.style.width = `${10 * indexOf(app)}%`;
    tabs.forEach((tab, index) => {
      const selected = steps[index]!.id === step;
      tab.setAttribute('aria-selected', String(selected));
      tab.tabIndex = selected ? 0 : -1;
    });
  });
  const label = el('span', { class: 'hint flow-label', 'aria-hidden': 'true' }, 'values');
  return el('div', { class: 'flow' }, valuesPath(), label, list, here);
}

/** Milliseconds for which Play shows a step: all ten take 40 s. */
const playPause = 4000;

/** Walks through the steps until the end, or until another step is chosen. */
function playButton(app: App): HTMLElement {
  const button = el('button', { class: 'secondary', id: 'step-play' }, 'Play');
  let timer: ReturnType<typeof setInterval> | undefined;
  let expected: StepId | undefined;
  const stop = (): void => {
    clearInterval(timer);
    timer = undefined;
    button.textContent = 'Play';
  };
  const show = (index: number): void => {
    expected = steps[index]!.id;
    goTo(app, index);
    if (index === steps.length - 1) stop();
  };
  button.addEventListener('click', () => {
    if (timer !== undefined) return stop();
    timer = setInterval(() => show(indexOf(app) + 1), playPause);
    button.textContent = 'Stop';
    show(indexOf(app) === steps.length - 1 ? 0 : indexOf(app) + 1);
  });
  app.state.watch(({ step }) => {
    if (timer !== undefined && step !== expected) stop();
  });
  return button;
}

export function stepButtons(app: App): HTMLElement {
  const button = (label: string, by: number): HTMLElement => {
    const element = el('button', { class: 'secondary', onclick: () => !atEnd() && goTo(app, indexOf(app) + by) }, label);
    const atEnd = () => steps[indexOf(app) + by] === undefined;
    // Use aria-disabled, because a disabled button would lose the focus.
    app.state.watch(() => element.setAttribute('aria-disabled', String(atEnd())));
    return element;
  };
  const slider = el('input', { type: 'range', class: 'step-slider', 'aria-label': 'Step', min: 1, max: steps.length });
  slider.addEventListener('input', () => goTo(app, Number(slider.value) - 1, 'slide through the steps'));
  app.state.watch(() => {
    const index = indexOf(app);
    slider.value = String(index + 1);
    slider.setAttribute('aria-valuetext', `${index + 1} of ${steps.length}: ${steps[index]!.title}`);
  });
  return el('div', { class: 'dock step-buttons' }, button('← Back', -1), slider, button('Next →', 1), playButton(app));
}
