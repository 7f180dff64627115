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

export interface VectorStrips {
  readonly element: HTMLElement;
  show(strips: readonly Strip[]): void;
}

/** `count` is the number of strips. It does not change, so that nothing below moves. */
export function createStrips(count: number): VectorStrips {
  const lines = Array.from({ length: count }, () => ({
    label: el('span', { class: 'strip-label' }),
    canvas: el('canvas', { class: 'strip-cells', height: 1, 'aria-hidden': 'true' }),
  }));
  const element = el('div', { class: 'vectors' }, ...lines.flatMap(({ label, canvas }) => [label, canvas]));
  let shown: readonly Strip[] = [];

  function draw(): void {
    const color = (value: number, limit: number) => colorScale(paintTheme.get(), 'signed', limit)(value);
    lines.forEach(({ label, canvas }, i) => {
      const strip = shown[i];
      label.replaceChildren(...(strip?.label ?? []));
      if (!strip) return;
      const { data, limit } = strip;
      // One pixel for each cell; style sheets enlarge it. Setting the width would clear and reallocate the canvas.
      if (canvas.width !== data.length) canvas.width = data.length;
      const pixels = Uint32Array.from(data, (value) => color(value, limit).bytes);
      const image = new ImageData(new Uint8ClampedArray(pixels.buffer), data.length, 1);
      canvas.getContext('2d')?.putImageData(image, 0, 0);
    });
  }

  paintTheme.watch(draw);
  return {
    element,
    show(strips) {
      shown = strips;
      draw();
    },
  };
}
