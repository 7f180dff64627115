// All heads of the visitor's own model as one picture: a row of small maps for each layer. A press opens a head.

import type { Matrix } from '../../attention/matrix.js';
import { el, refill } from '../../dom/dom.js';
import { paintTheme } from '../../dom/printing.js';
import { whenSeen } from '../../dom/when_seen.js';
import { colorScale } from '../../maps/color_scale.js';

export function createOverview(onOpen: (layer: number, head: number) => void) {
  const grid = el('div', { class: 'own-grid', role: 'grid', 'aria-label': 'Heads of all layers' });
  const hint = el('p', { class: 'hint' });
  const element = el('div', { class: 'slim own-overview' }, hint, grid);
  let rows: readonly ReturnType<typeof createRow>[] = [];
  let shown: Matrix = { shape: [0, 0, 0, 0], data: new Float32Array() };
  let open: readonly [layer: number, head: number] = [0, 0];

  function draw(layer: number): void {
    const [, heads, queries, keys] = shown.shape as [number, number, number, number];
    const count = heads * queries * keys;
    const row = rows[layer];
    if (row && count > 0) paintRow(row.canvas, shown.data.subarray(layer * count, (layer + 1) * count), heads, keys);
  }

  function createRow(layer: number, heads: number) {
    const buttons = Array.from({ length: heads }, (_, head) => {
      const label = `Layer ${layer + 1}, head ${head + 1}`;
      const button = el('button', { role: 'gridcell', class: 'own-cell', tabindex: -1, 'aria-selected': 'false', 'aria-label': label, title: label });
      button.style.gridColumn = String(head + 2);
      button.addEventListener('click', () => onOpen(layer, head));
      return button;
    });
    const name = el('span', { role: 'rowheader', class: 'own-row-name' }, el('span', { class: 'sr-only' }, 'Layer '), String(layer + 1));
    // The maps of all heads side by side, below the buttons: a canvas for each map would be hundreds of layers.
    const canvas = el('canvas', { class: 'own-strip', 'aria-hidden': 'true' });
    const row = el('div', { role: 'row', class: 'own-row' }, name, canvas, ...buttons);
    return { element: row, buttons, canvas, drawSoon: whenSeen(row, () => draw(layer)) };
  }

  function build(layers: number, heads: number): void {
    open = [0, 0];
    rows = Array.from({ length: layers }, (_, layer) => createRow(layer, heads));
    hint.textContent = `Every row is a layer, every picture one of its ${heads === 1 ? 'heads: one' : `${heads} heads`}. Press one to open it.`;
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
    const [layer, head] = open.map((at, axis) => {
      const last = axis === 0 ? rows.length - 1 : (rows[0]?.buttons.length ?? 1) - 1;
      return Math.max(0, Math.min(last, at + move[axis]!));
    }) as [number, number];
    onOpen(layer, head);
    rows[layer]?.buttons[head]?.focus();
  });

  paintTheme.watch(() => rows.forEach(({ drawSoon }) => drawSoon()));
  return {
    element,
    /** `weights`: (layers, heads, N, N). */
    show(weights: Matrix): void {
      const [layers, heads] = weights.shape as [number, number];
      if (rows.length !== layers || rows[0]?.buttons.length !== heads) build(layers, heads);
      shown = weights;
      for (const { drawSoon } of rows) drawSoon();
    },
    /** Marks the head that is open. */
    mark(layer: number, head: number): void {
      const set = ([row, column]: readonly [number, number], isOpen: boolean): void => {
        const button = rows[row]?.buttons[column];
        button?.setAttribute('aria-selected', String(isOpen));
        if (button) button.tabIndex = isOpen ? 0 : -1;
      };
      set(open, false);
      open = [layer, head];
      set(open, true);
    },
    /** Moves the focus to the head that is open. */
    focus: (): void => rows[open[0]]?.buttons[open[1]]?.focus(),
  };
}

/** One pixel for each weight; style sheets enlarge it. */
function paintRow(canvas: HTMLCanvasElement, weights: Float32Array, heads: number, keys: number): void {
  const color = colorScale(paintTheme.get(), 'weights');
  const width = heads * keys;
  const queries = weights.length / width;
  const pixels = new Uint32Array(weights.length);
  let from = 0;
  for (let head = 0; head < heads; head += 1) {
    for (let query = 0; query < queries; query += 1) {
      const to = query * width + head * keys;
      for (let key = 0; key < keys; key += 1, from += 1) pixels[to + key] = color(weights[from]!).bytes;
    }
  }
  if (canvas.width !== width || canvas.height !== queries) [canvas.width, canvas.height] = [width, queries];
  canvas.getContext('2d')?.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), width), 0, 0);
}
