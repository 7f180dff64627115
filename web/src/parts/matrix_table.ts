// A matrix as a table of numbers, to read or copy.

import { el, word } from './dom.js';
import { formatNumber } from './format.js';
import type { MatrixView } from './heat_map.js';

export function matrixTable(view: MatrixView, caption: string): HTMLElement {
  const heads = view.colLabels ?? Array.from({ length: view.cols }, (_, col) => String(col + 1));
  const head = el('tr', {}, el('td', {}), ...heads.map((label) => el('th', { scope: 'col' }, word(label))));
  const body = view.rowLabels.map((label, row) =>
    el(
      'tr',
      {},
      el('th', { scope: 'row' }, word(label)),
      ...Array.from({ length: view.cols }, (_, col) => {
        const hidden = view.hidden?.(row, col) ?? false;
        const value = view.data[row * view.cols + col]!;
        return el('td', hidden ? { class: 'hidden-cell' } : {}, formatNumber(value));
      }),
    ),
  );
  const table = el(
    'table',
    {},
    el('caption', { class: 'sr-only' }, caption),
    el('thead', {}, head),
    el('tbody', {}, ...body),
  );
  return el('div', { class: 'table-scroll', role: 'region', 'aria-label': caption, tabindex: 0 }, table);
}
