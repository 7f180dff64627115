// The figure of one number: the number itself, the operation that made it as a picture and in a sentence with all its terms, and
// how it goes on.

import { el, meter, percentOf, rich, setText, word, type Child } from '../../dom/dom.js';
import { createSharedBar } from '../../maps/shared_bar.js';
import { createStripCells, createStrips, limitOf, type Strip, type StripCells } from '../../maps/vector_strips.js';
import { mostBars, type Bar, type Explanation, type Terms } from './explain.js';
import type { Moving } from './motion.js';

export function createCellExplanation() {
  const place = el('span', { class: 'origin-pair' });
  const value = el('strong', { class: 'origin-value number' });
  const first = el('strong', { class: 'origin-first number' });
  const why = el('p', { class: 'origin-why' });
  const said = el('div', { class: 'wrap origin-said' }, value, ' ', place);
  const strips = createStrips();
  const bars = el('div', { class: 'bars origin-bars', 'aria-hidden': 'true' });
  const parts = Array.from({ length: mostBars }, createStripCells);
  const sum = createStripCells();
  const whole = createSharedBar();
  const next = el('p', { class: 'origin-next' });
  const head = el('span', { class: 'cut hint head-name', 'aria-hidden': 'true' });
  const summary = el('summary', {});
  const terms = el('div', { class: 'origin-terms', tabindex: 0, role: 'group', 'aria-label': 'Terms' });
  const details = el('details', {}, summary, terms);
  const element = el('div', { class: 'origin' }, head, said, why, strips.element, bars, whole.element, details, next);
  let current: Explanation | undefined;

  function fillTerms(): void {
    terms.replaceChildren();
    if (details.open && current?.terms) terms.append(tableOf(current.terms()));
  }
  details.addEventListener('toggle', fillTerms);

  return {
    element,
    head,
    /** Returns the elements that move when a step is shown. */
    moving: (): Moving => ({
      value,
      first,
      strips: strips.element,
      bars: (current?.bars ?? []).map(({ key, start = 0 }, i) => ({
        bar: bars.querySelectorAll<HTMLElement>('.origin-bar > *')[i]!,
        start: percentOf(start),
        part: current?.whole && whole.partOf(key),
      })),
      parts: current?.sum ? parts.slice(0, current.bars?.length).map(({ canvas }) => canvas) : [],
      sum: sum.canvas,
    }),
    /**
     * Returns the number and how it came about in one sentence, for screen readers. `goesOn`: how the number goes on to the next step;
     * empty for a number that is not of the thread.
     */
    show(where: readonly Child[], number: string, explanation: Explanation, goesOn: string): string {
      current = explanation;
      const { product, bars: shown = [], sum: total, first: largest = '', whole: row } = explanation;
      place.replaceChildren(...where);
      value.textContent = number;
      first.textContent = largest;
      why.replaceChildren(first, ...rich(explanation.why));
      strips.element.hidden = product === undefined;
      if (product) strips.show(stripsOf(product), explanation.lit);
      bars.hidden = shown.length === 0;
      bars.replaceChildren(...(total ? [lineOf('sum', sum.canvas, number)] : []), ...shown.map((bar, i) => barOf(bar, parts[i]!)));
      const limit = limitOf(...shown.flatMap(({ part }) => part ?? []), ...(total ? [total] : []));
      shown.forEach(({ part }, i) => part && parts[i]!.show(part, limit));
      if (total) sum.show(total, limit);
      whole.element.hidden = row === undefined;
      if (row) whole.show(row.weights, row.names, row.head, row.chosen);
      details.hidden = explanation.terms === undefined;
      const count = product?.left.data.length;
      summary.textContent = count === undefined ? 'All terms' : `All ${count} terms`;
      setText(next, '');
      if (goesOn) next.append(el('strong', {}, 'Next: '), ...rich(goesOn));
      fillTerms();
      const how = product ? `the sum of ${count} products.` : why.textContent!.split(/(?<=\.) /, 1)[0]!;
      return `${place.textContent}: ${number}, ${how}`;
    },
  };
}

function stripsOf({ left, right }: NonNullable<Explanation['product']>): Strip[] {
  const products = left.data.map((number, i) => number * right.data[i]!);
  const strip = (label: string, data: Float32Array): Strip => ({ label: rich(label), data, limit: limitOf(data) });
  return [strip(left.label, left.data), strip(right.label, right.data), strip('product', products)];
}

function barOf({ label, share, note, part }: Bar, cells: StripCells): HTMLElement {
  const room = meter(share, 'origin-bar');
  return lineOf(word(label), part ? el('span', { class: 'origin-bar-and-part' }, room, cells.canvas) : room, note);
}

const lineOf = (name: Child, shown: Element, note: string): HTMLElement =>
  el('div', { class: 'origin-bar-line' }, name, shown, el('span', { class: 'number' }, note));

function tableOf({ titles, rows, total }: Terms): HTMLElement {
  const cells = (tag: 'td' | 'th', texts: readonly string[]) => texts.map((text) => el(tag, {}, ...rich(text)));
  const sum = [...titles.slice(2).map(() => ''), 'sum', total];
  return el(
    'table',
    { class: 'under' },
    el('thead', {}, el('tr', {}, ...cells('th', titles))),
    el('tbody', {}, ...rows.map((row) => el('tr', {}, ...cells('td', row)))),
    el('tfoot', {}, el('tr', {}, ...cells('td', sum))),
  );
}
