// All heads of the visitor's own model as one picture: a row of small maps for each layer. A press opens a head.

import type { Matrix } from '../../attention/matrix.js';
import { el, refill } from '../../dom/dom.js';
import { paintTheme } from '../../dom/printing.js';
import { whenSeen } from '../../dom/when_seen.js';
import { colorScale } from '../../maps/color_scale.js';

export interface Overview {
  readonly element: HTMLElement;
  /** `weights`: (layers, heads, N, N). */
  show(weights: Matrix): void;
  /** Marks the head that is open. */
  mark(layer: number, head: number): void;
  /** Moves the focus to the head that is open. */
  focus(): void;
}

interface Row {
  readonly element: HTMLElement;
  readonly buttons: readonly HTMLButtonElement[];
  readonly drawSoon: () => void;
}

export function createOverview(onOpen: (layer: number, head: number) => void): Overview {
  const grid = el('div', { class: 'own-grid', role: 'grid', 'aria-label': 'Heads of all layers' });
  const hint = el('p', { class: 'hint' });
  const element = el('div', { class: 'own-overview' }, hint, grid);
  let rows: readonly Row[] = [];
  let shown: Matrix = { shape: [0, 0, 0, 0], data: new Float32Array() };
  let open: readonly [layer: number, head: number] = [0, 0];

  function draw(layer: number): void {
    const [, heads, queries, keys] = shown.shape as [number, number, number, number];
    rows[layer]?.buttons.forEach((button, head) => {
      const begin = (layer * heads + head) * queries * keys;
      paintSmall(button.firstElementChild as HTMLCanvasElement, shown.data.subarray(begin, begin + queries * keys), keys);
    });
  }

  function createRow(layer: number, heads: number): Row {
    const buttons = Array.from({ length: heads }, (_, head) => {
      const label = `Layer ${layer + 1}, head ${head + 1}`;
      const canvas = el('canvas', { class: 'own-thumb', 'aria-hidden': 'true' });
      const button = el('button', { type: 'button', role: 'gridcell', class: 'own-cell', tabindex: -1, 'aria-selected': 'false', 'aria-label': label, title: label }, canvas);
      button.addEventListener('click', () => onOpen(layer, head));
      return button;
    });
    const name = el('span', { role: 'rowheader', class: 'own-row-name' }, el('span', { class: 'sr-only' }, 'Layer '), String(layer + 1));
    const row = el('div', { role: 'row', class: 'own-row' }, name, ...buttons);
    return { element: row, buttons, drawSoon: whenSeen(row, () => draw(layer)) };
  }

  function build(layers: number, heads: number): void {
    open = [0, 0];
    rows = Array.from({ length: layers }, (_, layer) => createRow(layer, heads));
    hint.textContent = `Every row is a layer, every picture one of its ${heads === 1 ? 'heads: one' : `${heads} heads`}. Press one to open it.`;
    grid.style.setProperty('--heads', String(heads));
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
    show(weights) {
      const [layers, heads] = weights.shape as [number, number];
      if (rows.length !== layers || rows[0]?.buttons.length !== heads) build(layers, heads);
      shown = weights;
      for (const { drawSoon } of rows) drawSoon();
    },
    mark(layer, head) {
      const set = ([row, column]: readonly [number, number], isOpen: boolean): void => {
        const button = rows[row]?.buttons[column];
        button?.setAttribute('aria-selected', String(isOpen));
        if (button) button.tabIndex = isOpen ? 0 : -1;
      };
      set(open, false);
      open = [layer, head];
      set(open, true);
    },
    focus: () => rows[open[0]]?.buttons[open[1]]?.focus(),
  };
}

/** One pixel for each weight; style sheets enlarge it. */
function paintSmall(canvas: HTMLCanvasElement, weights: Float32Array, keys: number): void {
  if (weights.length === 0) return;
  const color = colorScale(paintTheme.get(), 'weights');
  const pixels = new Uint32Array(weights.length);
  for (let i = 0; i < pixels.length; i += 1) pixels[i] = color(weights[i]!).bytes;
  if (canvas.width !== keys || canvas.height !== pixels.length / keys) {
    [canvas.width, canvas.height] = [keys, pixels.length / keys];
  }
  canvas.getContext('2d')?.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), keys), 0, 0);
}
