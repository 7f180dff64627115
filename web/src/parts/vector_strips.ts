// Vectors as strips of coloured cells, one below the other, each with a label.

import { colorScale } from './color_scale.js';
import { el, type Child } from './dom.js';
import { paintStyle } from './matrix_map.js';
import { printing } from './printing.js';
import { theme } from './theme.js';

export interface Strip {
  readonly label: readonly Child[];
  readonly data: Float32Array;
  /** The value that has the strongest colour. */
  readonly limit: number;
}

export interface VectorStrips {
  readonly element: HTMLElement;
  show(strips: readonly Strip[]): void;
}

const height = 10;

/** `count` is the number of strips, which does not change, so that nothing below moves. */
export function createStrips(count: number): VectorStrips {
  const lines = Array.from({ length: count }, () => ({
    label: el('span', { class: 'strip-label' }),
    canvas: el('canvas', { class: 'strip-cells', height, 'aria-hidden': 'true' }),
  }));
  const element = el('div', { class: 'vectors' }, ...lines.flatMap(({ label, canvas }) => [label, canvas]));
  let shown: readonly Strip[] = [];

  function draw(): void {
    const { theme: now } = paintStyle();
    lines.forEach(({ label, canvas }, i) => {
      const strip = shown[i];
      label.replaceChildren(...(strip?.label ?? []));
      if (!strip) return;
      const { data, limit } = strip;
      const cell = 8;
      canvas.width = data.length * cell;
      const pen = canvas.getContext('2d');
      if (!pen) return;
      const color = colorScale(now, 'signed', limit);
      data.forEach((value, col) => {
        pen.fillStyle = color(value).fill;
        pen.fillRect(col * cell, 0, cell - 1, height);
      });
    });
  }

  theme.watch(draw);
  printing.watch(draw);
  return {
    element,
    show(strips) {
      shown = strips;
      draw();
    },
  };
}
