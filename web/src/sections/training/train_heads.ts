// The heads of the model in training: for each head its map, its row of job cells, and a badge that mutes it.

import { colorOf, patternIds } from '../../attention/patterns.js';
import { formatNumber } from '../../base/format.js';
import { differs } from '../../base/store.js';
import { createViewSwitch } from '../../controls/choice.js';
import { el, headBadge, refill, setText } from '../../dom/dom.js';
import type { MatrixView } from '../../maps/heat_map.js';
import { createLegend } from '../../maps/legend.js';
import { saveButtons, showMatrix } from '../../maps/map_frame.js';
import { createMap, type Cell, type MatrixMap } from '../../maps/matrix_map.js';
import { update, whenChanged, type App } from '../../state/app.js';
import { mapOf } from '../../training/curve.js';
import { sequenceLength as length, type Frame } from '../../training/messages.js';
import { factsOf, type KindFacts, type TrainingSettings } from '../../training/settings.js';
import { accuracyAt, earnedBy, percent, type TrainingView } from '../../training/view.js';
import { createJobCells, type JobCells } from './job_cells.js';

interface Card {
  readonly element: HTMLElement;
  readonly button: HTMLButtonElement;
  readonly name: HTMLElement;
  readonly body: HTMLElement;
  readonly map: MatrixMap;
  readonly cells: JobCells;
  visible: boolean;
  /** Content of the last drawing; the map is drawn again only if the content changes. */
  drawn?: { readonly shown: Frame | undefined; readonly muted: boolean; readonly numbers: boolean };
}

/** The maps, and separately the line about them with the switch of their view, which stands below the chart. */
export function trainHeads(app: App): { readonly element: HTMLElement; readonly about: HTMLElement } {
  const { training } = app;
  const layers = el('div', { class: 'train-layers' });
  const readout = el('p', { class: 'readout' }, '\u00a0');
  const legend = createLegend('weights');
  legend.show({ masked: true });
  let cards: readonly Card[] = [];
  const [isOtherFrame, isOtherReadout] = [differs(), differs()];
  let pointed: Cell | null = null;
  const views = createViewSwitch(app, 'trainView', 'Show the heads as');

  /** Notes which cards are on the screen: during training, only maps on the screen are drawn. */
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const card = cards.find(({ element }) => element === target);
      if (card) card.visible = isIntersecting;
    }
    show(training.view.get());
  });

  function build(settings: TrainingSettings): void {
    watcher.disconnect();
    const { patterns } = factsOf(settings.kind);
    const heading = settings.layers > 1 ? 'h4' : 'h3';
    cards = Array.from({ length: settings.layers * settings.heads }, (_, head) => createCard(head, heading, patterns));
    layers.classList.toggle('is-paired', settings.layers > 1 && settings.heads <= 2);
    const rows = Array.from({ length: settings.layers }, (_, layer) => {
      const some = cards.slice(layer * settings.heads, (layer + 1) * settings.heads);
      const title = settings.layers > 1 ? [el('h3', {}, `Layer ${layer + 1}`)] : [];
      const all = [...some.map(({ element }) => element), ...(settings.layers === 1 ? [beside.element] : [])];
      return el('div', { class: 'train-layer' }, ...title, el('div', { class: 'train-cards' }, ...all));
    });
    refill(layers, ...rows);
    for (const { element } of cards) watcher.observe(element);
  }

  function createCard(head: number, heading: 'h3' | 'h4', patterns: KindFacts['patterns']): Card {
    const name = el('span', { class: 'head-job' });
    const button = el(
      'button',
      { class: 'badged head-button', 'aria-pressed': 'false', onclick: () => toggle(head) },
      el('span', { class: 'sr-only' }, `Mute head ${head + 1}: `),
      headBadge(head + 1, colorOf(head)),
      name,
    );
    const map = createMap({
      maxCell: 12,
      onPoint: (cell) => {
        pointed = cell;
        mark();
      },
      onChoose: ({ row, col }) => update(app, { trainQuery: row, trainKey: col }),
    });
    const cells = createJobCells(patterns, head);
    const body = el('div', { class: 'train-map' }, map.element);
    const saves = saveButtons(`the weights of trained head ${head + 1}`, () => {
      const view = training.view.get();
      return view.shown ? { view: matrixOf(view, head), title: titleOf(head, view) } : null;
    });
    const title = el(heading, { class: 'train-name' }, button);
    const element = el('article', { class: 'slim train-card' }, title, body, cells.element, saves);
    return { element, button, name, body, map, cells, visible: false };
  }

  const beside = smallerMap();

  function toggle(head: number): void {
    const { muted } = training.view.get();
    void training.mute(muted.includes(head) ? muted.filter((other) => other !== head) : [...muted, head]);
  }

  function show(view: TrainingView): void {
    const { settings } = view.curve;
    if (isOtherFrame([settings.kind, settings.layers, settings.heads])) build(settings);
    const { hidden } = beside.element;
    beside.show(view);
    if (beside.element.hidden !== hidden) for (const { map } of cards) map.remeasure();
    cards.forEach((card, head) => showCard(card, head, view));
    mark();
  }

  function showCard(card: Card, head: number, view: TrainingView): void {
    const { button, name, cells, element } = card;
    const { patterns } = factsOf(view.curve.settings.kind);
    const muted = view.muted.includes(head);
    const jobs = earnedBy(view, head);
    const title = jobs.join(', ') || (view.status !== 'running' && view.step > 0 ? 'no job of these' : 'no job yet');
    setText(name, title);
    name.classList.toggle('is-earned', jobs.length > 0);
    element.classList.toggle('is-muted', muted);
    button.setAttribute('aria-pressed', String(muted));
    button.disabled = view.status === 'running';
    const running = view.status === 'running';
    if (running && !card.visible) return;
    const attention = (view.measured ?? view.shown)?.attention ?? [];
    cells.show(attention.slice(head * patterns.length, (head + 1) * patterns.length), muted);
    // During training, show no table: it would be rebuilt many times a second.
    const numbers = app.state.get().trainView === 'numbers' && !running;
    const { drawn } = card;
    if (drawn && drawn.shown === view.shown && drawn.muted === muted && drawn.numbers === numbers) return;
    card.drawn = { shown: view.shown, muted, numbers };
    drawMap(card, head, view);
  }

  function drawMap({ body, map, drawn }: Card, head: number, view: TrainingView): void {
    const matrix = matrixOf(view, head);
    const cellLabel = (cell: Cell): string => `head ${head + 1}, ${describe(cell, matrix.rowLabels)}, ${valueIn(view, head, cell)}`;
    showMatrix(body, map, { view: matrix, label: titleOf(head, view), cellLabel }, drawn?.numbers ? 'numbers' : 'colors');
  }

  /** The pair under the pointer, or else the chosen pair, which stays marked while the heads train. */
  function inView(): Cell | null {
    const { trainQuery: row, trainKey: col } = app.state.get();
    return pointed ?? (row === null || col === null ? null : { row, col });
  }

  function mark(): void {
    const cell = inView();
    const view = training.view.get();
    const names = namesOf(view);
    for (const map of [...cards.map((card) => card.map), beside.map]) map.highlight(cell);
    const all = cell ? cards.map((_, head) => valueIn(view, head, cell)) : [];
    if (!isOtherReadout(cell && [describe(cell, names), all])) return;
    if (!cell) {
      readout.replaceChildren('\u00a0');
      return;
    }
    const values = cards.flatMap((_, head) => [
      el(
        'span',
        { class: 'badged strip-head' },
        headBadge(head + 1, colorOf(head), view.muted.includes(head)),
        el('span', { class: 'number' }, all[head]!),
      ),
    ]);
    readout.replaceChildren(el('span', {}, describe(cell, names)), ...values);
  }

  training.view.watch(show);
  whenChanged(app, ['trainView'], () => show(training.view.get()));
  whenChanged(app, ['trainQuery', 'trainKey'], mark);
  return {
    element: el('div', { class: 'close train-heads' }, layers, readout),
    about: el(
      'div',
      { class: 'row apart low train-heads-head' },
      el(
        'p',
        { class: 'hint' },
        'Each map is one head, on letters it never trained on. The numbers say how much it looks where each job must look: 1 is perfect.',
      ),
      legend.element,
      views,
    ),
  };
}

/** The map of the model with one head, in gray: one pattern for all jobs. */
function smallerMap() {
  const said = el('span', { class: 'hint beside-text' });
  const map = createMap({ maxCell: 12, onPoint: () => undefined });
  const name = el(
    'p',
    { class: 'badged train-name train-beside-name' },
    el('span', { class: 'badge head-average', 'aria-hidden': 'true' }, '1'),
    said,
  );
  const element = el('article', { class: 'slim train-beside', hidden: true }, name, map.element);
  let drawn: Frame | undefined;
  return {
    element,
    map,
    show(view: TrainingView): void {
      const { smallerRun, smallerShown } = view;
      element.hidden = smallerRun?.settings.heads !== 1 || view.curve.settings.layers > 1; // There is one map, and no place beside layers.
      if (element.hidden || !smallerRun || !smallerShown) return;
      const right = accuracyAt(view, smallerRun);
      setText(said, right === undefined ? 'alone' : `alone: ${percent(right)} right`);
      if (smallerShown === drawn) return;
      drawn = smallerShown;
      const gray = { ...matrixOf(view, 0), data: smallerShown.maps, hidden: (row: number, col: number) => col > row, headOf: () => averageColor };
      const label = `Attention weights of the model with 1 head at step ${smallerShown.step}`;
      const cellLabel = ({ row, col }: Cell): string =>
        `1 head, ${describe({ row, col }, gray.rowLabels)}, ${formatNumber(smallerShown.maps[row * length + col]!, 2)}`;
      map.show({ view: gray, label, cellLabel });
    },
  };
}

const averageColor = patternIds.indexOf('average');

function matrixOf(view: TrainingView, head: number): MatrixView {
  const names = namesOf(view);
  const muted = view.muted.includes(head);
  return {
    ...{ rows: length, cols: length, rowLabels: names, colLabels: names, scale: 'weights', small: true },
    ...(view.curve.settings.kind === 'fourJobs' && { strong: names.map((name) => name !== '' && 'aeio★☆✦✧'.includes(name)) }),
    ...(view.shown ? { data: mapOf(view.shown.maps, head) } : { data: new Float32Array(), blank: true }),
    hidden: (row, col) => col > row,
    headOf: () => head,
    muted,
  };
}

const titleOf = (head: number, { step }: TrainingView): string => `Attention weights of trained head ${head + 1} at step ${step}`;

function namesOf({ tokens, curve }: TrainingView): string[] {
  const { tokens: names } = factsOf(curve.settings.kind);
  return Array.from({ length }, (_, i) => (i < tokens.length ? names[tokens[i]!]! : ''));
}

const describe = ({ row, col }: Cell, names: readonly string[]): string => `query ${names[row]} at ${row + 1}, key ${names[col]} at ${col + 1}`;

function valueIn({ shown, muted }: TrainingView, head: number, { row, col }: Cell): string {
  if (muted.includes(head)) return 'muted';
  if (col > row) return 'masked, 0';
  return shown ? formatNumber(mapOf(shown.maps, head)[row * length + col]!, 2) : '';
}
