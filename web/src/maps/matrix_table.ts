// A matrix as a table of numbers, to read or copy. The document holds only the visible cells, because a page with eight
// tables of 64 × 64 cells would take seconds to lay out. For printing, it holds all cells.

import { largestIndex } from '../attention/matrix.js';
import { formatNumber } from '../base/format.js';
import { differs } from '../base/store.js';
import { el, word } from '../dom/dom.js';
import { printing } from '../dom/printing.js';
import { axesOf, hatchedAs } from './cell_text.js';
import type { MatrixView } from './heat_map.js';
import type { Mark } from './matrix_map.js';

/** Sizes in rem, as set in matrix.css: cells grow with the browser's font size. */
const rowHeight = 1.6875;
const colWidth = 4.125;
const nameWidth = 7.5;
/** Additional cells on each side of the visible ones. */
const margin = 4;
/** Size in pixels, assumed until the table is in the document. */
const viewport = { width: 320, height: 380 };

interface Span {
  readonly begin: number;
  readonly end: number;
}

/**
 * The rows or columns to show, out of `count` of `size` pixels each, in a viewport of `extent` pixels that begins at
 * `start`.
 */
export function spanOf(count: number, size: number, start: number, extent: number): Span {
  const begin = Math.max(0, Math.min(count, Math.floor(start / size)) - margin);
  return { begin, end: Math.min(count, Math.ceil((start + extent) / size) + margin) };
}

const refill = 'multihead-refill';
printing.watch(() => {
  for (const region of document.querySelectorAll('.table-scroll')) region.dispatchEvent(new Event(refill));
});

export function matrixTable(view: MatrixView, caption: string) {
  const { rows, cols, data, rowLabels } = view;
  const colLabels = view.colLabels ?? Array.from({ length: cols }, (_, col) => String(col + 1));
  const head = el('thead');
  const body = el('tbody');
  const table = el('table', { 'aria-rowcount': rows + 1, 'aria-colcount': cols + 1 }, el('caption', { class: 'sr-only' }, caption), head, body);
  const region = el('div', { class: 'table-scroll', role: 'region', 'aria-label': caption, tabindex: 0 }, table);

  const gap = (tag: 'td' | 'tr', count: number): HTMLElement[] => {
    if (count === 0) return [];
    const element = el(tag, { class: 'table-gap', 'aria-hidden': 'true' });
    if (tag === 'td') element.style.minWidth = `${count * colWidth}rem`;
    else element.style.height = `${count * rowHeight}rem`;
    return [element];
  };

  function rowOf(index: number, first: HTMLElement, across: Span, cell: (col: number) => HTMLElement) {
    const cells = [];
    for (let col = across.begin; col < across.end; col += 1) {
      const element = cell(col);
      element.setAttribute('aria-colindex', String(col + 2));
      cells.push(element);
    }
    const row = [first, ...gap('td', across.begin), ...cells, ...gap('td', cols - across.end)];
    return el('tr', { 'aria-rowindex': index + 1, class: index - 1 === marked && 'is-marked' }, ...row);
  }

  function cellOf(row: number, col: number): HTMLElement {
    const [number, said] = [formatNumber(data[row * cols + col]!), view.words?.[row * cols + col]];
    const text = said === undefined ? number : `${said} ${number}`;
    return el('td', hatchedAs(view, row, col) ? { class: 'hidden-cell' } : {}, text);
  }

  let marked = -1;
  const isNew = differs();
  function fill(): void {
    const everything = printing.get();
    const { clientWidth: width, clientHeight: height } = region.isConnected ? region : { clientWidth: viewport.width, clientHeight: viewport.height };
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const down = everything ? { begin: 0, end: rows } : spanOf(rows, rowHeight * rem, region.scrollTop, height);
    const across = everything ? { begin: 0, end: cols } : spanOf(cols, colWidth * rem, region.scrollLeft, width);
    if (!isNew([down, across, marked])) return;
    const corner = el('td', {}, view.colLabels ? axesOf(view).join(' \\ ') : '');
    head.replaceChildren(rowOf(0, corner, across, (col) => el('th', { scope: 'col' }, word(colLabels[col]!))));
    const lines = [];
    for (let row = down.begin; row < down.end; row += 1) {
      const label = el('th', { scope: 'row' }, word(rowLabels[row]!));
      lines.push(rowOf(row + 1, label, across, (col) => cellOf(row, col)));
    }
    body.replaceChildren(...gap('tr', down.begin), ...lines, ...gap('tr', rows - down.end));
  }

  let asked = false;
  region.addEventListener('scroll', () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      fill();
    });
  });
  new ResizeObserver(fill).observe(region);
  region.addEventListener(refill, fill);
  fill();
  return {
    element: region,
    /** Marks a row and scrolls to its cell; without a column, to the row's largest number. */
    mark(at: Mark | null): void {
      const row = at && at.row < rows ? at.row : -1;
      if (row >= 0) {
        const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
        const col = at!.col ?? largestIndex(data.subarray(row * cols, (row + 1) * cols));
        // Beyond the names, which stay.
        region.scrollTop = inSight(region.scrollTop, row * rowHeight * rem, rowHeight * rem, region.clientHeight - rowHeight * rem);
        region.scrollLeft = inSight(region.scrollLeft, col * colWidth * rem, colWidth * rem, region.clientWidth - nameWidth * rem);
      }
      marked = row;
      fill();
    },
  };
}

/** The scroll position nearest to `now` at which `size` pixels from `start` on are in a window of `extent` pixels. */
const inSight = (now: number, start: number, size: number, extent: number): number => Math.min(start, Math.max(now, start + size - extent));
