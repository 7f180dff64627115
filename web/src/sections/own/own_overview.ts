// All heads of the visitor's own model as one picture: small maps, in rows of layers or sorted by what the heads do with the text. A
// press opens a head.

import type { Matrix } from '../../attention/matrix.js';
import { formatNumber, formatPercent } from '../../base/format.js';
import { choiceOf } from '../../controls/choice.js';
import { el, refill } from '../../dom/dom.js';
import { paintTheme } from '../../dom/printing.js';
import { whenSeen } from '../../dom/when_seen.js';
import { colorScale } from '../../maps/color_scale.js';
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

  function draw(row: number): void {
    const [, heads, queries, keys] = shown.shape as [number, number, number, number];
    const count = queries * keys;
    const canvas = rows[row]?.canvas;
    if (!canvas || count === 0) return;
    const maps = order.slice(row * heads, (row + 1) * heads).map((head) => shown.data.subarray(head * count, (head + 1) * count));
    paintRow(canvas, maps, keys);
  }

  function createRow(row: number, heads: number) {
    const places = Array.from({ length: heads }, (_, column) => {
      const button = el('button', { role: 'gridcell', class: 'own-cell', tabindex: -1, 'aria-selected': 'false' });
      const note = el('span', { class: 'own-note number', 'aria-hidden': 'true' });
      for (const each of [button, note]) each.style.gridColumn = String(column + 2);
      button.addEventListener('click', () => openPlace(row, column));
      return { button, note };
    });
    const [what, name] = [el('span', { class: 'sr-only' }), el('span', {}, String(row + 1))];
    // The maps of all heads side by side, below the buttons: a canvas for each map would be hundreds of layers.
    const canvas = el('canvas', { class: 'own-strip', 'aria-hidden': 'true' });
    const header = el('span', { role: 'rowheader', class: 'own-row-name' }, what, name);
    const buttons = places.map(({ button }) => button);
    const notes = places.map(({ note }) => note);
    const line = el('div', { role: 'row', class: 'own-row' }, header, canvas, ...buttons, ...notes);
    return { element: line, buttons, notes, what, name, canvas, drawSoon: whenSeen(line, () => draw(row)) };
  }

  function openPlace(row: number, column: number): void {
    const [, heads] = shown.shape as [number, number];
    const at = order[row * heads + column]!;
    onOpen(Math.floor(at / heads), at % heads);
  }

  /** Puts the heads in their places, and says how they are sorted. */
  function sort(): void {
    const [layers, heads, queries] = shown.shape as [number, number, number];
    const { ownSort: by } = app.state.get();
    const found = by === 'layer' || tokens.length !== queries ? undefined : headScores(shown, tokens, by);
    sortLine.hidden = tokens.length !== queries;
    order = found && by !== 'layer' ? sortedHeads(found, by) : Array.from({ length: layers * heads }, (_, at) => at);
    hint.textContent =
      found && by !== 'layer'
        ? `Heads ${scores[by][1]}: means over this text. Press one to open it.`
        : by === 'induction' && !sortLine.hidden
          ? 'No token of this text occurs twice, so no head can show induction. Repeat a word.'
          : `Every row is a layer, every picture one of its ${heads === 1 ? 'heads: one' : `${heads} heads`}. Press one to open it.`;
    rows.forEach(({ buttons, notes, what, name }, row) => {
      what.textContent = found ? 'From rank ' : 'Layer ';
      name.textContent = String(found ? row * heads + 1 : row + 1);
      buttons.forEach((button, column) => {
        const at = order[row * heads + column]!;
        const score = found && (by === 'entropy' ? formatNumber(found[at]!, 2) : formatPercent(found[at]!));
        const title = `Layer ${Math.floor(at / heads) + 1}, head ${(at % heads) + 1}${score === undefined ? '' : `: ${score}`}`;
        button.title = button.ariaLabel = title;
        notes[column]!.textContent = score ?? '';
      });
    });
    for (const { drawSoon } of rows) drawSoon();
  }

  function build(layers: number, heads: number): void {
    open = [0, 0];
    rows = Array.from({ length: layers }, (_, row) => createRow(row, heads));
    grid.style.setProperty('--heads', String(heads));
    grid.style.setProperty('--layers', String(layers));
    refill(grid, ...rows.map((row) => row.element));
  }

  grid.addEventListener('keydown', (event) => {
    const moves: Readonly<Record<string, readonly [number, number]>> = {
      ...{ ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] },
      ...{ Home: [0, -Infinity], End: [0, Infinity] },
    };
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const [row, column] = open.map((at, axis) => {
      const last = axis === 0 ? rows.length - 1 : (rows[0]?.buttons.length ?? 1) - 1;
      return Math.max(0, Math.min(last, at + move[axis]!));
    }) as [number, number];
    openPlace(row, column);
    rows[row]?.buttons[column]?.focus();
  });

  paintTheme.watch(() => rows.forEach(({ drawSoon }) => drawSoon()));
  return {
    element,
    /** `weights`: (layers, heads, N, N). `ids`: the N tokens; none for maps that cannot be sorted. */
    show(weights: Matrix, ids: readonly number[]): void {
      const [layers, heads] = weights.shape as [number, number];
      shown = weights;
      tokens = ids;
      if (rows.length !== layers || rows[0]?.buttons.length !== heads) build(layers, heads);
      sort();
    },
    sort,
    /** Marks the head that is open. */
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
    /** Moves the focus to the head that is open. */
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
