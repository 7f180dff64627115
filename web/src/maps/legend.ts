// The legend of a heat map's colors.

import { formatNumber } from '../base/format.js';
import { el, setText } from '../dom/dom.js';
import { paintTheme } from '../dom/printing.js';
import { colorScale, type ScaleName } from './color_scale.js';

/** A strip with the colors of the scale, drawn from the same table as the maps. */
function strip(name: ScaleName): HTMLElement {
  const width = 128;
  const canvas = el('canvas', { width, height: 10, class: 'legend-strip', 'aria-hidden': 'true' });
  paintTheme.watch((now) => {
    const context = canvas.getContext('2d');
    if (!context) return;
    const color = colorScale(now, name);
    for (let x = 0; x < width; x += 1) {
      const t = x / (width - 1);
      context.fillStyle = color(name === 'weights' ? t : 2 * t - 1).fill;
      context.fillRect(x, 0, 1, 10);
    }
  });
  return canvas;
}

export interface Marks {
  /** True if the maps have hatched cells. */
  readonly masked: boolean;
  /** True if the maps have cells with a mark in a corner. */
  readonly edited?: boolean;
  /** True if some hatched cells belong to a muted head. */
  readonly muted?: boolean | undefined;
  /** The largest absolute value of the signed scale. */
  readonly limit?: number;
}

/** Makes a legend. Without a limit, the signed scale has no numbers. `what`: what is between 0 and 1 in the other scale. */
export function createLegend(name: ScaleName, what = 'weight') {
  const [least, most] = name === 'weights' ? [`${what} 0`, '1'] : ['negative', 'positive'];
  const from = el('span', { class: 'number' }, least!);
  const to = el('span', { class: 'number' }, most!);
  const item = (kind: string, meaning: string | Node) =>
    el('span', { class: 'legend-item', hidden: true }, el('span', { class: kind, 'aria-hidden': 'true' }), meaning);
  const hatched = el('span', {});
  const hatch = item('legend-hatch', hatched);
  const corner = item('legend-corner', 'set by hand');
  return {
    element: el('p', { class: 'wrap hint legend' }, el('span', { class: 'legend-item' }, from, strip(name), to), hatch, corner),
    show({ masked, edited = false, muted, limit }: Marks): void {
      hatch.hidden = !masked && !muted;
      const why = name === 'weights' ? 'masked, exactly 0' : 'masked, −∞';
      setText(hatched, !muted ? why : masked ? `${why}, or muted` : 'muted');
      corner.hidden = !edited;
      if (limit === undefined || name === 'weights') return;
      from.textContent = formatNumber(-limit, 2);
      to.textContent = formatNumber(limit, 2);
    },
  };
}
