// "Split into heads": the columns of q take their head's color and slide apart. The bytes do not change.

import { mostColumns, type ForwardResult } from '../../attention/messages.js';
import { colorOf, patternIds } from '../../attention/patterns.js';
import { formatNumber } from '../../base/format.js';
import { choiceOf, createViewSwitch, stateSwitch } from '../../controls/choice.js';
import { el, headBadge, panel, refill, setText, word, type Child } from '../../dom/dom.js';
import { announced } from '../../dom/live_region.js';
import { whenSeen } from '../../dom/when_seen.js';
import type { MatrixView } from '../../maps/heat_map.js';
import { rowHeightOf } from '../../maps/map_layout.js';
import { saveButtons, showMatrix } from '../../maps/map_frame.js';
import { createMap, type Cell } from '../../maps/matrix_map.js';
import { viewOf } from '../../maps/step_view.js';
import { update, whenChanged, withResult, type App } from '../../state/app.js';
import type { ViewName } from '../../state/page_state.js';
import { firstWrong, indexOf, sourceOf, stridesOf, type Place, type SplitSize } from './split.js';

const choices = [2, 4, 7, 8] as const;

export function splitSection(app: App): HTMLElement {
  const views = createViewSwitch(app, 'revealView', 'Show the parts as');
  const lead = el('span', {});
  // An invisible copy of the usual text keeps the height, so that the buttons below do not move.
  const usual = el('span', { class: 'is-idle' });
  const labels = el('div', { class: 'reveal-labels', 'aria-hidden': 'true' });
  const blocks = el('div', { class: 'reveal-blocks' });
  const row = el('div', { class: 'reveal' }, labels, blocks);
  const verdict = announced(el('p', { class: 'reveal-verdict' }));
  const address = el('p', { class: 'reveal-address' });
  const strides = el('div', { class: 'reveal-strides' });
  const memory = el('div', { class: 'well wrap apart reveal-memory' }, address, strides);
  const saves = saveButtons('this split', () => saved(app));
  const controls = el(
    'div',
    { class: 'row reveal-controls' },
    headsChoice(app),
    splitButton(app),
    stateSwitch(app, 'wrongReshape', {
      id: 'wrong-reshape',
      name: ['A common bug:'],
      line: 'reshape without transpose',
    }),
  );
  const under = el('div', { class: 'wrap apart reveal-under' }, verdict, saves);
  const line = el('p', { class: 'lead stack' }, lead, usual);
  const section = panel('reveal', { title: 'Split into heads', lead: line, tools: views.element }, controls, row, under, memory);

  let list: Block[] = [];
  let pointed: Place | null = null;

  function show(): void {
    const result = app.result.get();
    if (!result) return;
    const { width } = sizeOf(result, 1);
    row.hidden = under.hidden = controls.hidden = width > mostColumns;
    if (row.hidden) {
      memory.hidden = true;
      lead.textContent = `q of this model has ${width} columns, more than this picture shows (${mostColumns}). The steps show each head’s part of it.`;
      return;
    }
    const { splitApart, revealView } = app.state.get();
    const parts = partsOf(app, result);
    while (list.length < parts.length) list.push(createBlock(list.length, point));
    list = list.slice(0, Math.max(parts.length, 1));
    // Insert blocks only if their number changes: an element that is inserted again loses its transition.
    if (blocks.childElementCount !== list.length) refill(blocks, ...list.map((block) => block.element));
    blocks.style.gridTemplateColumns = parts.map(({ cols }) => `${cols}fr`).join(' ');
    row.classList.toggle('is-apart', splitApart);
    row.classList.toggle('is-numbers', revealView === 'numbers');
    parts.forEach((view, i) => {
      const left = result.split.heads === null && i === parts.length - 1;
      list[i]!.show(view, { of: parts.length, as: revealView, left });
    });
    showLabels(result);
    setText(lead, leadText(result));
    setText(usual, usualText(8, sizeOf(result, 8).width));
    verdict.replaceChildren(...verdictText(app, result));
    point(pointed);
    showStrides(result);
  }

  function showLabels(result: ForwardResult): void {
    const names = viewOf(result, 'q', 0).rowLabels;
    const height = rowHeightOf(names.length);
    labels.style.gridAutoRows = `${height}px`;
    labels.style.fontSize = `${Math.min(13, Math.max(9, Math.floor(height * 0.62)))}px`;
    labels.replaceChildren(...names.map((name) => word(name)));
  }

  function point(place: Place | null): void {
    pointed = place;
    const result = app.result.get();
    if (!result) return;
    memory.hidden = false;
    if (!result.split.heads) {
      setText(address, 'No steps in memory fit: the next head would have to begin in the middle of a column.');
      for (const block of list) block.highlight(null);
      return;
    }
    const { splitHeads, wrongReshape } = app.state.get();
    const count = result.tokens.length;
    const size = sizeOf(result, splitHeads);
    const first = wrongReshape ? firstWrong(size) : null;
    const fallback = first ?? { head: 1 % splitHeads, token: Math.min(1, count - 1), col: 0 };
    const fits = place && place.head < splitHeads && place.token < count && place.col < size.width / splitHeads;
    address.replaceChildren(...addressText(result, fits ? place : fallback, wrongReshape));
    list.forEach((block, head) => {
      const at = fits ? place : fallback;
      block.highlight(at.head === head ? at : null);
    });
  }

  function showStrides(result: ForwardResult): void {
    const { splitHeads, wrongReshape } = app.state.get();
    const fits = result.split.heads !== null;
    const line = (name: string, wrong: boolean) => {
      const { head, token, col } = stridesOf(sizeOf(result, splitHeads), wrong);
      const current = fits && wrong === wrongReshape;
      const cells = [head, token, col].map((step) => el('td', { class: 'number' }, fits ? `+${step}` : '–'));
      return el('tr', current ? { class: 'is-current' } : {}, el('th', { scope: 'row' }, name), ...cells);
    };
    const heading = ['How far in memory is the next', 'head', 'token', 'column'];
    strides.replaceChildren(
      el(
        'table',
        {},
        el('thead', {}, el('tr', {}, ...heading.map((text) => el('th', { scope: 'col' }, text)))),
        el('tbody', {}, line('Split', false), line('Wrong reshape', true)),
      ),
    );
  }

  show();
  const showSoon = whenSeen(section, show);
  app.result.watch(showSoon);
  whenChanged(app, ['splitApart', 'wrongReshape', 'revealView'], show);
  return withResult(app, section);
}

function headsChoice(app: App): HTMLElement {
  return el(
    'div',
    { class: 'row control-head', role: 'group', 'aria-labelledby': 'split-heads' },
    el('span', { id: 'split-heads', class: 'control-name' }, 'Heads'),
    choiceOf(
      app,
      'splitHeads',
      choices.map((value) => ({ value, label: String(value), id: `split-${value}` })),
    ),
  );
}

function splitButton(app: App): HTMLElement {
  // Both texts have their place, so that what follows stays where it is.
  const [apart, together] = [el('span', {}, 'Slide apart'), el('span', {}, 'Push together')];
  const button = el('button', { class: 'secondary stack', id: 'split-apart' }, apart, together);
  button.addEventListener('click', () => update(app, { splitApart: !app.state.get().splitApart }));
  app.state.watch(({ splitApart }) => {
    apart.classList.toggle('is-idle', splitApart);
    together.classList.toggle('is-idle', !splitApart);
  });
  return button;
}

type Block = ReturnType<typeof createBlock>;

function createBlock(head: number, onPoint: (place: Place | null) => void) {
  const name = el('p', { class: 'reveal-head' });
  const body = el('div', { class: 'reveal-body' });
  const element = el('div', { class: 'reveal-block' }, name, body);
  const map = createMap({
    maxCell: 28,
    sizer: body,
    onPoint: (cell) => onPoint(cell && { head, token: cell.row, col: cell.col }),
  });
  return {
    element,
    /** `of`: number of blocks. `left`: true for the columns that are left over and belong to no head. */
    show(view: MatrixView, { of, as, left }: { of: number; as: ViewName; left: boolean }): void {
      const pattern = colorOf(head);
      element.className = `reveal-block head-${pattern}${left ? ' is-left' : ''}`;
      element.style.setProperty('--place', String((of - 1) / 2 - head));
      name.replaceChildren(...(left ? ['left'] : [headBadge(head + 1, pattern), el('span', { class: 'sr-only' }, `Head ${head + 1}`)]));
      const where = left ? 'left over' : `head ${head + 1}`;
      const label = `q, ${where}: ${view.rows} by ${view.cols}`;
      const cellLabel = ({ row, col }: Cell): string =>
        `${where}, token ${view.rowLabels[row]}, column ${col + 1}, ${formatNumber(view.data[row * view.cols + col]!, 2)}`;
      showMatrix(body, map, { view, label, cellLabel }, as);
    },
    highlight(place: Place | null): void {
      map.highlight(place && { row: place.token, col: place.col });
    },
  };
}

/**
 * One view for each head. If the number of heads does not divide 64: views of equal width, and one view of the columns
 * that are left over.
 */
function partsOf(app: App, result: ForwardResult): MatrixView[] {
  const { splitHeads, wrongReshape } = app.state.get();
  const whole = viewOf(result, 'q', 0);
  const { heads, reshaped } = result.split;
  const base = { rows: whole.rows, rowLabels: whole.rowLabels, bare: true, scale: 'signed' } as const;
  if (!heads || !reshaped) {
    const width = Math.floor(whole.cols / splitHeads);
    const equal = Array.from({ length: splitHeads }, (_, head) => ({
      ...base,
      ...columnsOf(whole, head * width, width),
      headOf: () => head,
    }));
    const left = whole.cols - splitHeads * width;
    const rest = { ...base, ...columnsOf(whole, splitHeads * width, left), hidden: () => true };
    return left > 0 ? [...equal, rest] : equal;
  }
  const [count, rows, cols] = heads.shape as [number, number, number];
  const { data } = wrongReshape ? reshaped : heads;
  const strides = stridesOf({ heads: count, tokens: rows, width: whole.cols }, wrongReshape);
  return Array.from({ length: count }, (_, head) => ({
    ...base,
    cols,
    data: data.subarray(head * rows * cols, (head + 1) * rows * cols),
    // The index of the head that owns the number in q; it sets the color.
    headOf: (token: number, col: number) => Math.floor(sourceOf(indexOf({ head, token, col }, strides), whole.cols).col / cols),
  }));
}

function columnsOf({ data, rows, cols }: MatrixView, start: number, width: number) {
  const part = new Float32Array(rows * width);
  for (let row = 0; row < rows; row += 1) {
    part.set(data.subarray(row * cols + start, row * cols + start + width), row * width);
  }
  return { data: part, cols: width };
}

/** The parts side by side, as one matrix. */
function saved(app: App): { view: MatrixView; title: string } | null {
  const result = app.result.get();
  if (!result) return null;
  const parts = partsOf(app, result);
  const whole = viewOf(result, 'q', 0);
  const data = new Float32Array(whole.data.length);
  const bands: { label: string; start: number; end: number; className: string }[] = [];
  const owner: { part: MatrixView; start: number }[] = [];
  let start = 0;
  parts.forEach((part, i) => {
    for (let row = 0; row < part.rows; row += 1) {
      data.set(part.data.subarray(row * part.cols, (row + 1) * part.cols), row * whole.cols + start);
    }
    for (let col = 0; col < part.cols; col += 1) owner.push({ part, start });
    bands.push({ label: part.headOf ? String(i + 1) : '', start, end: start + part.cols, className: '' });
    start += part.cols;
  });
  const { wrongReshape, splitHeads } = app.state.get();
  const view: MatrixView = {
    ...whole,
    data,
    bands,
    headOf: (row, col) => owner[col]!.part.headOf?.(row, col - owner[col]!.start) ?? patternIds.length - 2,
  };
  return { view, title: `q split among ${splitHeads} heads${wrongReshape ? ', wrong reshape' : ''}` };
}

const sizeOf = ({ tokens, trace }: ForwardResult, heads: number): SplitSize => ({
  heads,
  tokens: tokens.length,
  width: trace.q.shape.at(-1)!,
});

function leadText(result: ForwardResult): string {
  const { split, splitHeads } = result;
  const { width } = sizeOf(result, splitHeads);
  return split.heads ? usualText(splitHeads, width) : `${splitHeads} heads cannot share ${width} columns equally.`;
}

function usualText(heads: number, whole: number): string {
  const width = Math.floor(whole / heads);
  return `Each of ${heads} heads takes ${width} of the ${whole} columns of q, and the same of k and v. x itself is never split. No number moves: head 1 reads columns 1–${width}, head 2 columns ${width + 1}–${2 * width}, and so on.`;
}

/** A word, followed by a comma on the same line. */
const withComma = (name: string): HTMLElement => el('span', { class: 'unbroken' }, word(name), ',');

function verdictText(app: App, result: ForwardResult): Child[] {
  const { splitHeads, wrongReshape } = app.state.get();
  if (result.splitHeads !== splitHeads) return [];
  const size = sizeOf(result, splitHeads);
  if (!result.split.heads) {
    const width = Math.floor(size.width / splitHeads);
    const left = size.width - splitHeads * width;
    const columns = left === 1 ? 'column is' : 'columns are';
    return [
      el('strong', {}, `${size.width} = ${splitHeads} · ${width} + ${left}: ${left} ${columns} left over. `),
      `The module refuses: “${result.split.refusal}”`,
    ];
  }
  if (!wrongReshape) {
    return [
      `Head 1 has columns 1–${size.width / splitHeads} of every word, so each block has one color. Strong means large, pale means small or negative.`,
    ];
  }
  const place = firstWrong(size);
  if (!place) return ['With one head or one word, the wrong reshape changes nothing.'];
  const source = sourceOf(indexOf(place, stridesOf(size, true)), size.width);
  const names = viewOf(result, 'q', 0).rowLabels;
  const owner = Math.floor((source.col * splitHeads) / size.width) + 1;
  return [
    el('strong', {}, `First wrong cell: head ${place.head + 1}, `, withComma(names[place.token]!), ` column ${place.col + 1}. `),
    'It holds column ',
    String(source.col + 1),
    ' of ',
    withComma(names[source.token]!),
    ` which belongs to head ${owner}. Each head now mixes words instead of columns.`,
  ];
}

/** Describes the place of a number: "Head 2, saw, column 1 is 0.574: column 9 of saw, the 73rd of 512 numbers in memory." */
function addressText(result: ForwardResult, place: Place, wrong: boolean): Child[] {
  const { split, tokens } = result;
  const size = sizeOf(result, split.heads!.shape[0]!);
  const index = indexOf(place, stridesOf(size, wrong));
  const source = sourceOf(index, size.width);
  const { rowLabels, data } = viewOf(result, 'q', 0);
  return [
    el('strong', {}, `Head ${place.head + 1}, `, withComma(rowLabels[place.token]!), ` column ${place.col + 1}`),
    ' is ',
    el('span', { class: 'number' }, formatNumber(data[index]!)),
    `: column ${source.col + 1} of `,
    withComma(rowLabels[source.token]!),
    ` the ${ordinal(index + 1)} of ${tokens.length * size.width} numbers in memory.`,
  ];
}

/** "73rd". */
function ordinal(number: number): string {
  const teens = number % 100 > 10 && number % 100 < 14;
  return `${number}${(teens ? undefined : ['th', 'st', 'nd', 'rd'][number % 10]) ?? 'th'}`;
}
