// All layers and heads of the visitor's own model as one picture: a row of small maps for each layer. A press opens the
// layer.

import type { Matrix } from '../../attention/matrix.js';
import { el, refill } from '../../dom/dom.js';
import { paintTheme } from '../../dom/printing.js';
import { colorScale } from '../../maps/color_scale.js';

export interface Overview {
  readonly element: HTMLElement;
  /** `layers`: (H, N, N) for each layer. */
  show(layers: readonly Matrix[]): void;
  /** Marks the layer that is open. */
  mark(layer: number): void;
}

export function createOverview(onOpen: (layer: number) => void): Overview {
  const rows = el('div', { class: 'own-rows', role: 'group', 'aria-label': 'All layers' });
  const hint = el('p', { class: 'hint' }, 'Every head of every layer. Press a layer to open its heads.');
  const element = el('div', { class: 'own-overview' }, hint, rows);
  let shown: readonly Matrix[] = [];

  function draw(): void {
    const buttons = [...rows.children] as HTMLButtonElement[];
    shown.forEach(({ shape, data }, layer) => {
      const [heads, queries, keys] = shape as [number, number, number];
      const canvases = buttons[layer]!.querySelectorAll('canvas');
      for (let head = 0; head < heads; head += 1) {
        paintSmall(canvases[head]!, data.subarray(head * queries * keys, (head + 1) * queries * keys), keys);
      }
    });
  }

  paintTheme.watch(draw);
  return {
    element,
    show(layers) {
      const [heads] = layers[0]?.shape ?? [0];
      if (rows.childElementCount !== layers.length || rows.firstElementChild?.querySelectorAll('canvas').length !== heads) {
        const buttons = layers.map((_, layer) => {
          const canvases = Array.from({ length: heads! }, () => el('canvas', { class: 'own-thumb', 'aria-hidden': 'true' }));
          const button = el('button', { type: 'button', class: 'own-row' }, el('span', { class: 'own-row-name' }, `Layer ${layer + 1}`), ...canvases);
          button.addEventListener('click', () => onOpen(layer));
          return button;
        });
        refill(rows, ...buttons);
      }
      shown = layers;
      draw();
    },
    mark(layer) {
      [...rows.children].forEach((row, i) => row.setAttribute('aria-pressed', String(i === layer)));
    },
  };
}

/** One pixel for each weight; style sheets enlarge it. */
function paintSmall(canvas: HTMLCanvasElement, weights: Float32Array, keys: number): void {
  const color = colorScale(paintTheme.get(), 'weights');
  canvas.width = keys;
  canvas.height = weights.length / keys;
  const pixels = Uint32Array.from(weights, (weight) => color(weight).bytes);
  canvas.getContext('2d')?.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), keys), 0, 0);
}
