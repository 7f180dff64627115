// Explains, next to a matrix, how the number in one cell was made: the operation as a picture, in a sentence, and with
// all its terms.

import { el, rich, word, type Child } from '../../dom/dom.js';
import { announced } from '../../dom/live_region.js';
import { createStrips, type Strip } from '../../maps/vector_strips.js';
import type { Bar, Explanation, Terms } from './explain.js';

export interface CellExplanation {
  readonly element: HTMLElement;
  show(place: readonly Child[], value: string, explanation: Explanation): void;
  /** Moves the operands together: the strips meet, their products light up, the sum drops; bars grow. */
  play(): void;
}

const stillness = matchMedia('(prefers-reduced-motion: reduce)');
const playTime = 600;

export function createCellExplanation(): CellExplanation {
  const place = el('p', { class: 'origin-pair' });
  const value = el('p', { class: 'origin-value number' });
  const why = announced(el('p', { class: 'origin-why' }));
  const strips = createStrips(3);
  const bars = el('div', { class: 'origin-bars', 'aria-hidden': 'true' });
  const summary = el('summary', {});
  const terms = el('div', { class: 'origin-terms' });
  const details = el('details', {}, summary, terms);
  const element = el('div', { class: 'origin' }, place, value, why, strips.element, bars, details);
  let current: Explanation | undefined;

  function fillTerms(): void {
    terms.replaceChildren();
    if (details.open && current?.terms) terms.append(tableOf(current.terms()));
  }
  details.addEventListener('toggle', fillTerms);

  return {
    element,
    play() {
      if (stillness.matches) return;
      const move = (target: Element | undefined, frames: Keyframe[], delay = 0) =>
        target?.animate(frames, { duration: playTime - delay, delay, easing: 'ease-out', fill: 'backwards' });
      const [left, right, product] = strips.element.querySelectorAll('canvas');
      move(left, [{ transform: 'translateY(-18px)', opacity: 0.3 }, { transform: 'none', opacity: 1 }]);
      move(right, [{ transform: 'translateY(18px)', opacity: 0.3 }, { transform: 'none', opacity: 1 }]);
      move(product, [{ clipPath: 'inset(0 100% 0 0)' }, { clipPath: 'inset(0)' }], playTime / 3);
      for (const bar of bars.querySelectorAll('.origin-bar')) move(bar, [{ transform: 'scaleX(0)' }, { transform: 'none' }]);
      // Its opacity stays, so that the text can be read at any moment.
      move(value, [{ transform: 'translateY(-14px)' }, { transform: 'none' }], playTime / 2);
    },
    show(where, number, explanation) {
      current = explanation;
      const { product, bars: shown = [] } = explanation;
      place.replaceChildren(...where);
      value.textContent = number;
      why.replaceChildren(...rich(explanation.why));
      strips.element.hidden = product === undefined;
      if (product) strips.show(stripsOf(product));
      bars.hidden = shown.length === 0;
      bars.replaceChildren(...shown.map(barOf));
      details.hidden = explanation.terms === undefined;
      const count = product?.left.data.length;
      summary.textContent = count === undefined ? 'All terms' : `All ${count} terms`;
      fillTerms();
    },
  };
}

function stripsOf({ left, right }: NonNullable<Explanation['product']>): Strip[] {
  const products = left.data.map((number, i) => number * right.data[i]!);
  const strip = (label: string, data: Float32Array): Strip => ({
    label: rich(label),
    data,
    limit: data.reduce((most, number) => Math.max(most, Math.abs(number)), 0) || 1,
  });
  return [strip(left.label, left.data), strip(right.label, right.data), strip('product', products)];
}

function barOf({ label, weight, note }: Bar): HTMLElement {
  const bar = el('span', { class: 'origin-bar' });
  bar.style.width = `${(100 * Math.min(1, Math.max(0, weight))).toFixed(1)}%`;
  return el(
    'div',
    { class: 'origin-bar-line' },
    word(label),
    el('span', { class: 'origin-bar-room' }, bar),
    el('span', { class: 'number' }, note),
  );
}

function tableOf({ titles, rows, total }: Terms): HTMLElement {
  const cells = (tag: 'td' | 'th', texts: readonly string[]) => texts.map((text) => el(tag, {}, ...rich(text)));
  const sum = [...titles.slice(2).map(() => ''), 'sum', total];
  return el(
    'table',
    {},
    el('thead', {}, el('tr', {}, ...cells('th', titles))),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, ...cells('td', row)))),
    el('tfoot', {}, el('tr', {}, ...cells('td', sum))),
  );
}
