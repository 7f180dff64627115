// Explains, next to a matrix, how the number in one cell was made: the operation as a picture, in a sentence, and with
// all its terms.

import { el, meter, rich, word, type Child } from '../../dom/dom.js';
import { announced } from '../../dom/live_region.js';
import { createStripCells, createStrips, limitOf, type Strip, type StripCells } from '../../maps/vector_strips.js';
import { mostBars, type Bar, type Explanation, type Terms } from './explain.js';
import type { Moving } from './motion.js';

export function createCellExplanation() {
  const place = el('span', { class: 'origin-pair' });
  const value = el('span', { class: 'origin-value number' });
  const why = el('p', { class: 'origin-why' });
  // Announced as a whole: a sum alone does not say which cell it belongs to.
  const said = announced(el('div', { class: 'origin-said', 'aria-atomic': 'true' }, place, ': ', value, ' ', why));
  const strips = createStrips(3);
  const bars = el('div', { class: 'origin-bars', 'aria-hidden': 'true' });
  const parts = Array.from({ length: mostBars }, createStripCells);
  const sum = createStripCells();
  const summary = el('summary', {});
  const terms = el('div', { class: 'origin-terms' });
  const details = el('details', {}, summary, terms);
  const element = el('div', { class: 'origin' }, said, strips.element, bars, details);
  let current: Explanation | undefined;

  function fillTerms(): void {
    terms.replaceChildren();
    if (details.open && current?.terms) terms.append(tableOf(current.terms()));
  }
  details.addEventListener('toggle', fillTerms);

  return {
    element,
    /** Returns the elements that move when a step is shown. */
    moving: (): Moving => ({
      box: element,
      value,
      strips: strips.element,
      bars,
      starts: (current?.bars ?? []).map(({ start = 0 }) => percent(start)),
      parts: current?.sum ? parts.slice(0, current.bars?.length).map(({ canvas }) => canvas) : [],
      sum: sum.canvas,
    }),
    show(where: readonly Child[], number: string, explanation: Explanation): void {
      current = explanation;
      const { product, bars: shown = [], sum: total } = explanation;
      place.replaceChildren(...where);
      value.textContent = number;
      why.replaceChildren(...rich(explanation.why));
      strips.element.hidden = product === undefined;
      if (product) strips.show(stripsOf(product));
      bars.hidden = shown.length === 0;
      bars.replaceChildren(...(total ? [lineOf('sum', sum.canvas, number)] : []), ...shown.map((bar, i) => barOf(bar, parts[i]!)));
      const limit = limitOf(...shown.flatMap(({ part }) => part ?? []), ...(total ? [total] : []));
      shown.forEach(({ part }, i) => part && parts[i]!.show(part, limit));
      if (total) sum.show(total, limit);
      details.hidden = explanation.terms === undefined;
      const count = product?.left.data.length;
      summary.textContent = count === undefined ? 'All terms' : `All ${count} terms`;
      fillTerms();
    },
  };
}

function stripsOf({ left, right }: NonNullable<Explanation['product']>): Strip[] {
  const products = left.data.map((number, i) => number * right.data[i]!);
  const strip = (label: string, data: Float32Array): Strip => ({ label: rich(label), data, limit: limitOf(data) });
  return [strip(left.label, left.data), strip(right.label, right.data), strip('product', products)];
}

const percent = (share: number): string => `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;

function barOf({ label, weight, note, part }: Bar, cells: StripCells): HTMLElement {
  const room = meter(weight, 'origin-bar-room', false);
  return lineOf(word(label), part ? el('span', { class: 'origin-bar-and-part' }, room, cells.canvas) : room, note);
}

const lineOf = (name: Child, shown: Element, note: string): HTMLElement =>
  el('div', { class: 'origin-bar-line' }, name, shown, el('span', { class: 'number' }, note));

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
