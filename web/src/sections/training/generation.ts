// The generation of a pattern token by token, with a cache and without one. Loaded with the first model of patterns.

import '../../styles/generate.css';
import { formatMilliseconds } from '../../base/format.js';
import { el, setText } from '../../dom/dom.js';
import { reducedMotion } from '../../dom/reduced_motion.js';
import { update, type App } from '../../state/app.js';
import { createGenerating, finished, type Generating, type GenerationView } from '../../training/generating.js';
import { mostTokens, type Cost } from '../../training/messages.js';
import { cacheBytes } from '../../training/multiply_adds.js';
import { factsOf } from '../../training/settings.js';

const tickPause = 260;
/** Below this accuracy, the page says that the model has not learned the pattern. */
const learned = 0.9;

export function generation(app: App): HTMLElement {
  const generating = createGenerating(app.training, app.state.get().pattern, () => (reducedMotion.matches ? 0 : tickPause));
  app.state.watch(({ pattern }, previous) => {
    if (previous && pattern !== previous.pattern) generating.restart(pattern);
  });
  const panels = [costPanel(generating, 'With a cache', 'cached'), costPanel(generating, 'Without a cache', 'plain')];
  const costs = el('div', { class: 'cost-panels' }, ...panels);
  return el('div', { class: 'generation' }, controls(app, generating), strip(app, generating), costs, answer(app, generating));
}

function controls(app: App, generating: Generating): HTMLElement {
  const go = el('button', { class: 'primary', id: 'generate-go' }, 'Generate');
  const one = el('button', { class: 'secondary', id: 'generate-one', onclick: () => void generating.tick() }, 'One token');
  const other = el('button', { class: 'secondary', id: 'generate-other' }, 'Another pattern');
  const place = el('p', { class: 'hint train-place number' });
  const hint = el('p', { class: 'under hint line generate-hint', role: 'status' });
  // The bar moves; the sentence stays the same during the training, so that it is announced once.
  const progress = el('progress', { class: 'generate-progress', 'aria-hidden': 'true', hidden: true });
  go.addEventListener('click', () => {
    if (generating.view.get().running) generating.pause();
    else void generating.run();
  });
  other.addEventListener('click', () => update(app, { pattern: (app.state.get().pattern + 1) % 100 }));
  const show = (): void => {
    const view = generating.view.get();
    const training = app.training.view.get();
    const { running, tokens, message } = view;
    const trains = training.status === 'running' || training.status === 'starting';
    setText(go, running ? 'Pause' : finished(view) ? 'Again' : 'Generate');
    // Use aria-disabled, because a disabled button would lose the focus.
    for (const button of [go, one]) button.setAttribute('aria-disabled', String(trains));
    one.disabled = running || finished(view);
    setText(place, tokens.length > 0 ? `${tokens.length} of ${mostTokens} tokens` : '');
    const right = training.measured?.accuracy ?? training.shown?.accuracy ?? 0;
    progress.hidden = !trains;
    progress.max = factsOf(training.curve.settings.kind).steps;
    progress.value = Math.min(progress.max, training.step);
    const said = trains
      ? 'Training…'
      : message || (right < learned ? 'This model has not learned the pattern: it will guess. Train it above first.' : '');
    setText(hint, said);
  };
  generating.view.watch(show);
  app.training.view.watch(show);
  return el('div', { class: 'far' }, el('div', { class: 'row run-buttons' }, go, one, other, place), progress, hint);
}

function strip(app: App, generating: Generating): HTMLElement {
  const list = el('ol', { class: 'wrap generated', 'aria-label': 'Tokens so far' });
  const legend = el(
    'p',
    { class: 'wrap hint legend' },
    el('span', { class: 'legend-item' }, el('span', { class: 'made is-given', 'aria-hidden': 'true' }), 'given'),
    el('span', { class: 'legend-item' }, el('span', { class: 'made', 'aria-hidden': 'true' }), 'generated'),
    el('span', { class: 'legend-item' }, el('span', { class: 'made is-wrong', 'aria-hidden': 'true' }, '✗'), 'breaks the pattern'),
  );
  generating.view.watch(({ tokens, prompt }) => {
    const { tokens: names } = factsOf(app.training.view.get().curve.settings.kind);
    const period = prompt?.period ?? 1;
    const given = prompt?.tokens.length ?? 0;
    while (list.childElementCount > tokens.length) list.lastElementChild!.remove();
    tokens.forEach((token, i) => {
      const wrong = i >= given && token !== tokens[i - period];
      const text = names[token]!;
      const present = list.children[i];
      if (present?.firstChild?.textContent === text) return;
      const kind = i < given ? 'made is-given' : wrong ? 'made is-wrong' : 'made';
      const sign = wrong ? [el('span', { class: 'wrong-sign' }, '✗', el('span', { class: 'sr-only' }, ' breaks the pattern'))] : [];
      const item = el('li', { class: kind }, el('span', {}, text), ...sign);
      if (present) present.replaceWith(item);
      else list.append(item);
    });
    list.hidden = tokens.length === 0;
    legend.hidden = tokens.length === 0;
  });
  return el('div', { class: 'generated-box' }, list, legend);
}

/** A cell for each token's key and value: computed in this tick, kept from an earlier tick, or not computed yet. */
function costPanel(generating: Generating, title: string, which: 'cached' | 'plain'): HTMLElement {
  const cells = Array.from({ length: mostTokens }, () => el('span', { class: 'row-cell' }));
  const said = el('p', { class: 'hint cost-text' });
  const numbers = { adds: number('multiply-adds'), bytes: number('kept in memory'), time: number('time') };
  generating.view.watch(({ ticks }) => {
    const tick = ticks.at(-1);
    const cost = tick?.[which];
    const rows = tick ? tick.length - 1 : 0;
    cells.forEach((cell, i) => {
      const now = cost !== undefined && i < rows && i >= rows - cost.rows;
      cell.className = now ? 'row-cell is-now' : i < rows && cost ? 'row-cell is-kept' : 'row-cell';
    });
    setText(said, cost ? saidOf(cost, rows) : 'Nothing computed yet.');
    setText(numbers.adds.value, cost ? cost.multiplyAdds.toLocaleString('en') : '–');
    setText(numbers.bytes.value, cost ? bytesText(cost.bytes) : '–');
    setText(numbers.time.value, cost ? formatMilliseconds(cost.milliseconds) : '–');
  });
  return el(
    'article',
    { class: `cost-panel cost-${which}` },
    el('h3', {}, title),
    el('div', { class: 'row-cells', 'aria-hidden': 'true' }, ...cells),
    said,
    el('dl', { class: 'cost-numbers' }, ...Object.values(numbers).map(({ element }) => element)),
  );
}

function saidOf({ rows }: Cost, all: number): string {
  if (rows === all) return `For this token, the keys and values of all ${all} tokens are computed.`;
  const tokens = rows === 1 ? '1 token are' : `${rows} tokens are`;
  return `For this token, the key and value of ${tokens} computed, and ${all - rows} are read from the cache.`;
}

function number(name: string) {
  const value = el('dd', { class: 'number' }, '–');
  return { element: el('div', {}, el('dt', {}, name), value), value };
}

const bytesText = (bytes: number): string => `${bytes.toLocaleString('en')} bytes`;

function answer(app: App, generating: Generating): HTMLElement {
  const same = el('p', { class: 'line same-tokens' });
  const total = el('p', { class: 'line generate-total' });
  const why = el('p', {});
  const show = (): void => {
    const view = generating.view.get();
    const { embedDim, vocabSize, kind } = factsOf(app.training.view.get().curve.settings.kind);
    const { layers } = app.training.view.get().curve.settings;
    if (kind !== 'induction') return;
    const each = cacheBytes({ layers, embedDim, vocabSize }, 1);
    why.textContent =
      'A token’s key and value depend on no later token, so they never change. Stored in a cache, each new token costs one new key and value; ' +
      `without it, all are computed again. The price is memory: ${each} bytes a token in this model.`;
    setText(same, sameText(view));
    same.classList.toggle('is-same', view.ticks.length > 0 && differing(view) === 0);
    setText(total, totalText(view));
  };
  generating.view.watch(show);
  app.training.view.watch((view, previous) => {
    if (view.curve !== previous?.curve) show();
  });
  return el('div', { class: 'part cache-answer' }, el('h3', {}, 'What does a cache save?'), why, total, same);
}

const differing = ({ ticks }: GenerationView): number => ticks.filter(({ cached, plain }) => cached.token !== plain.token).length;

function sameText(view: GenerationView): string {
  const count = view.ticks.length;
  if (count === 0) return '';
  const wrong = differing(view);
  return wrong === 0 ? `Same tokens with and without the cache: ${count} of ${count}.` : `${wrong} of ${count} tokens differ with the cache.`;
}

function totalText({ ticks }: GenerationView): string {
  if (ticks.length === 0) return '';
  const sum = (which: 'cached' | 'plain'): number => ticks.reduce((total, tick) => total + tick[which].multiplyAdds, 0);
  const [cached, plain] = [sum('cached'), sum('plain')];
  const millions = (value: number): string => `${(value / 1e6).toFixed(2)} million`;
  return `So far: ${millions(cached)} multiply-adds with the cache, ${millions(plain)} without: ${(plain / cached).toFixed(1)} times as many.`;
}
