// All heads of the visitor's own model as one picture: small maps, in rows of layers or sorted by what the heads do with the text. A
// press opens a head.

import type { Matrix } from '../../attention/matrix.js';
import { formatNumber, formatPercent } from '../../base/format.js';
import { differs } from '../../base/store.js';
import { choiceOf } from '../../controls/choice.js';
import { el, refill } from '../../dom/dom.js';
import { paintTheme } from '../../dom/printing.js';
import { whenSeen } from '../../dom/when_seen.js';
import { colorScale } from '../../maps/color_scale.js';
import { destination } from '../../maps/map_grid.js';
import { headScores, sortedHeads } from '../../model/head_scores.js';
import { scoreNames, type ScoreName } from '../../model/limits.js';
import type { App } from '../../state/app.js';

const scores: Readonly<Record<ScoreName, readonly [label: string, line: string]>> = {
  previous: ['Token before', 'by the weight on the token before'],
  first: ['First token', 'by the weight on the first token'],
  itself: ['Itself', 'by the weight on the token itself'],
  induction: ['Induction', 'by the weight on what followed the same token earlier in the text'],
  entropy: ['Entropy', 'by how widely the weight is spread, the sharpest first; 0 is all on one token'],
};

export function createOverview(app: App, onOpen: (layer: number, head: number) => void) {
  const options = [{ value: 'layer', label: 'Layer' } as const, ...scoreNames.map((value) => ({ value, label: scores[value][0] }))];
  const sorts = choiceOf(app, 'ownSort', options, { class: 'segments', role: 'group', 'aria-label': 'Sort the heads by' });
  const sortLine = el('p', { class: 'row own-sort' }, el('span', { class: 'control-name' }, 'Sort by'), sorts);
  const grid = el('div', { class: 'own-grid', role: 'grid', 'aria-label': 'Heads of all layers' });
  const hint = el('p', { class: 'hint' });
  const element = el('div', { class: 'slim own-overview' }, sortLine, hint, grid);
  let rows: readonly ReturnType<typeof createRow>[] = [];
  let shown: Matrix = { shape: [0, 0, 0, 0], data: new Float32Array() };
  let tokens: readonly number[] = [];
  /** The heads in the order of the places, each layer · heads + head. */
  let order: readonly number[] = [];
  let open: readonly [row: number, column: number] = [0, 0];
  const isNew = differs();

  function draw(row: number): void {
    const [, heads, queries, keys] = shown.shape as [number, number, number, number];
    const count = queries * keys;
    const canvas = rows[row]?.canvas;
    if (!canvas || count === 0) return;
    const maps = order.slice(row * heads, (row + 1) * heads).map((head) => shown.data.subarray(head * count, (head + 1) * count));
    paintRow(canvas, maps, keys);
  }

  function createRow(row: number, heads: number, scoreOf: (head: number) => string) {
    const isRank = scoreOf(0) !== '';
    const places = order.slice(row * heads, (row + 1) * heads);
    const buttons = places.map((at, column) => {
      const title = `Layer ${Math.floor(at / heads) + 1}, head ${(at % heads) + 1}${isRank ? `: ${scoreOf(at)}` : ''}`;
      const attributes = { role: 'gridcell', class: 'own-cell', tabindex: -1, 'aria-selected': 'false', 'aria-label': title, title };
      return el('button', { ...attributes, onclick: () => openPlace(row, column) });
    });
    const notes = isRank ? places.map((at) => el('span', { class: 'own-note number', 'aria-hidden': 'true' }, scoreOf(at))) : [];
    for (const list of [buttons, notes]) list.forEach((each, column) => (each.style.gridColumn = String(column + 2)));
    const what = el('span', { class: 'sr-only' }, isRank ? 'From rank ' : 'Layer ');
    const name = el('span', { role: 'rowheader', class: 'number hint own-row-name' }, what, String(isRank ? row * heads + 1 : row + 1));
    // The maps of all heads side by side, below the buttons: a canvas for each map would be hundreds of layers.
    const canvas = el('canvas', { class: 'own-strip', 'aria-hidden': 'true' });
    const line = el('div', { role: 'row', class: 'own-row' }, name, canvas, ...buttons, ...notes);
    return { element: line, buttons, canvas, drawSoon: whenSeen(line, () => draw(row)) };
  }

  function openPlace(row: number, column: number): void {
    const [, heads] = shown.shape as [number, number];
    const at = order[row * heads + column]!;
    onOpen(Math.floor(at / heads), at % heads);
  }

  function sort(): void {
    const [layers, heads, queries] = shown.shape as [number, number, number];
    const { ownSort } = app.state.get();
    const canSort = tokens.length === queries;
    const by = ownSort === 'layer' || !canSort ? undefined : ownSort;
    const found = by && headScores(shown, tokens, by);
    sortLine.hidden = !canSort;
    order = by && found ? sortedHeads(found, by) : Array.from({ length: layers * heads }, (_, at) => at);
    const everyRow = `Every row is a layer, every picture one of its ${heads === 1 ? 'heads: one' : `${heads} heads`}. Press one to open it.`;
    const none = 'No token of this text occurs twice, so no head can show induction. Repeat a word.';
    hint.textContent = !by ? everyRow : found ? `Heads ${scores[by][1]}: means over this text. Press one to open it.` : none;
    const written = found && Array.from(found, (score) => (by === 'entropy' ? formatNumber(score, 2) : formatPercent(score)));
    if (isNew([layers, heads, written, written && order])) {
      open = [0, 0];
      rows = Array.from({ length: layers }, (_, row) => createRow(row, heads, (head) => written?.[head] ?? ''));
      grid.style.setProperty('--heads', String(heads));
      grid.style.setProperty('--layers', String(layers));
      refill(grid, ...rows.map((row) => row.element));
    }
    for (const { drawSoon } of rows) drawSoon();
  }

  grid.addEventListener('keydown', (event) => {
    const cell = destination(event, { row: open[0], col: open[1] }, { rows: rows.length, cols: rows[0]?.buttons.length ?? 1 });
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    openPlace(cell.row, cell.col);
    rows[cell.row]?.buttons[cell.col]?.focus();
  });

  paintTheme.watch(() => rows.forEach(({ drawSoon }) => drawSoon()));
  return {
    element,
    /** `weights`: (layers, heads, N, N). `ids`: the N tokens; none for maps that cannot be sorted. */
    show(weights: Matrix, ids: readonly number[]): void {
      shown = weights;
      tokens = ids;
      sort();
    },
    sort,
    mark(layer: number, head: number): void {
      const heads = rows[0]?.buttons.length ?? 1;
      const set = ([row, column]: readonly [number, number], isOpen: boolean): void => {
        const button = rows[row]?.buttons[column];
        button?.setAttribute('aria-selected', String(isOpen));
        if (button) button.tabIndex = isOpen ? 0 : -1;
      };
      set(open, false);
      const place = Math.max(0, order.indexOf(layer * heads + head));
      open = [Math.floor(place / heads), place % heads];
      set(open, true);
    },
    focus: (): void => rows[open[0]]?.buttons[open[1]]?.focus(),
  };
}

/** One pixel for each weight of the maps, which are side by side; style sheets enlarge it. */
function paintRow(canvas: HTMLCanvasElement, maps: readonly Float32Array[], keys: number): void {
  const color = colorScale(paintTheme.get(), 'weights');
  const width = maps.length * keys;
  const queries = maps[0]!.length / keys;
  const pixels = new Uint32Array(width * queries);
  maps.forEach((weights, at) =>
    weights.forEach((weight, i) => {
      pixels[Math.floor(i / keys) * width + at * keys + (i % keys)] = color(weight).bytes;
    }),
  );
  if (canvas.width !== width || canvas.height !== queries) [canvas.width, canvas.height] = [width, queries];
  canvas.getContext('2d')?.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), width), 0, 0);
}
