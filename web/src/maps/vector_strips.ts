// Vectors as strips of colored cells, one below the other, each with a label.

import { el, type Child } from '../dom/dom.js';
import { paintTheme } from '../dom/printing.js';
import { colorScale } from './color_scale.js';

export interface Strip {
  readonly label: readonly Child[];
  readonly data: Float32Array;
  /** The value that has the strongest color. */
  readonly limit: number;
}

export type StripCells = ReturnType<typeof createStripCells>;

/** The largest absolute value of the vectors, for use as `limit`; 1 if all values are 0. */
export const limitOf = (...vectors: Float32Array[]): number =>
  vectors.reduce((most, data) => data.reduce((so, value) => Math.max(so, Math.abs(value)), most), 0) || 1;

/** One strip without a label. It paints itself again when the theme changes, so create it once and keep it. */
export function createStripCells() {
  const canvas = el('canvas', { class: 'strip-cells', height: 1, 'aria-hidden': 'true' });
  let shown: { data: Float32Array; limit: number } | undefined;

  function draw(): void {
    if (!shown) return;
    const { data, limit } = shown;
    const color = colorScale(paintTheme.get(), 'signed', limit);
    // One pixel for each cell; style sheets enlarge it. Setting the width would clear and reallocate the canvas.
    if (canvas.width !== data.length) canvas.width = data.length;
    const pixels = Uint32Array.from(data, (value) => color(value).bytes);
    const image = new ImageData(new Uint8ClampedArray(pixels.buffer), data.length, 1);
    canvas.getContext('2d')?.putImageData(image, 0, 0);
  }

  paintTheme.watch(draw);
  return {
    canvas,
    show(data: Float32Array, limit: number): void {
      shown = { data, limit };
      draw();
    },
  };
}

/** Three strips: two operands and their product. A frame marks one column of all three. */
export function createStrips() {
  const lines = Array.from({ length: 3 }, () => ({ label: el('span', { class: 'cut strip-label' }), cells: createStripCells() }));
  const frame = el('span', { class: 'strip-lit' });
  const over = el('span', { class: 'strip-over', 'aria-hidden': 'true' }, frame);
  const element = el('div', { class: 'vectors' }, ...lines.flatMap(({ label, cells }) => [label, cells.canvas]), over);
  return {
    element,
    show(strips: readonly Strip[], lit: number | undefined): void {
      strips.forEach(({ label, data, limit }, i) => {
        lines[i]!.label.replaceChildren(...label);
        lines[i]!.cells.show(data, limit);
      });
      frame.hidden = lit === undefined;
      const count = strips[0]!.data.length;
      frame.style.left = `${(100 * (lit ?? 0)) / count}%`;
      frame.style.width = `${100 / count}%`;
    },
  };
}
