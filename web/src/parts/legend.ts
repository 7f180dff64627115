// The legend of a heat map's colours.

import { colorScale, type ScaleName } from './color_scale.js';
import { el } from './dom.js';
import { formatNumber } from './format.js';
import { shade } from './printing.js';

/** A strip of the scale, drawn from the same table as the maps. */
function strip(name: ScaleName): HTMLElement {
  const width = 128;
  const canvas = el('canvas', { width, height: 10, class: 'legend-strip', 'aria-hidden': 'true' });
  shade.watch((now) => {
    const pen = canvas.getContext('2d');
    if (!pen) return;
    const color = colorScale(now, name);
    for (let x = 0; x < width; x += 1) {
      const t = x / (width - 1);
      pen.fillStyle = color(name === 'weights' ? t : 2 * t - 1).fill;
      pen.fillRect(x, 0, 1, 10);
    }
  });
  return canvas;
}

export interface Legend {
  readonly element: HTMLElement;
  /** `masked`: whether to explain hatched cells. `limit`: the end of the scale of signed values. */
  show(masked: boolean, limit?: number): void;
}

export function createLegend(name: ScaleName): Legend {
  const from = el('span', { class: 'number' }, 'weight 0');
  const to = el('span', { class: 'number' }, '1');
  const meaning = name === 'weights' ? 'masked, exactly 0' : 'masked, −∞';
  const hatch = el('span', { class: 'legend-hatch', 'aria-hidden': 'true' });
  const note = el('span', { class: 'legend-item', hidden: true }, hatch, meaning);
  return {
    element: el('p', { class: 'legend' }, el('span', { class: 'legend-item' }, from, strip(name), to), note),
    show(masked, limit) {
      note.hidden = !masked;
      if (limit === undefined || name === 'weights') return;
      from.textContent = formatNumber(-limit, 2);
      to.textContent = formatNumber(limit, 2);
    },
  };
}
