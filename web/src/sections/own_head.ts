// A head of the visitor's own model: its map or table.

import type { Matrix } from '../messages.js';
import { el, headBadge, refill } from '../parts/dom.js';
import type { MatrixView } from '../parts/heat_map.js';
import { createMap } from '../parts/matrix_map.js';
import { matrixTable } from '../parts/matrix_table.js';
import { cellText, saveButtons, type Saved } from '../parts/save_map.js';
import type { ViewName } from '../parts/view_switch.js';
import { patternIds } from '../patterns.js';
import { pairText } from './gallery_card.js';

export interface OwnHead {
  readonly element: HTMLElement;
  show(weights: Matrix, labels: readonly string[], layer: number, as: ViewName): void;
  highlight(cell: { row: number; col: number } | null): void;
}

export function createOwnHead(
  head: number,
  onPoint: (cell: { row: number; col: number } | null) => void,
): OwnHead {
  const map = createMap({ maxCell: 32, onPoint });
  const body = el('div', { class: 'card-body' }, map.element);
  const readout = el('p', { class: 'readout' }, '\u00a0');
  let saved: Saved | null = null;
  const saves = saveButtons(`the weights of head ${head + 1} of this model`, () => saved);
  const badge = headBadge(head + 1, patternIds[head % patternIds.length]!);
  const title = el('h3', {}, badge, el('span', { class: 'sr-only' }, `Head ${head + 1}`));
  const element = el('article', { class: 'card' }, title, body, readout, saves);

  return {
    element,
    show({ data, shape }, labels, layer, as) {
      const [, rows, cols] = shape as [number, number, number];
      const view: MatrixView = {
        ...{ rows, cols, rowLabels: labels, colLabels: labels, scale: 'weights' },
        data: data.subarray(head * rows * cols, (head + 1) * rows * cols),
        hidden: (row, col) => col > row,
      };
      saved = { view, title: `Layer ${layer}, head ${head + 1}` };
      readout.textContent = '\u00a0';
      if (as === 'numbers') {
        refill(body, matrixTable(view, saved.title));
        return;
      }
      if (body.firstElementChild !== map.element) body.replaceChildren(map.element);
      map.show({
        view,
        label: saved.title,
        cellLabel: ({ row, col }) => `head ${head + 1}, ${cellText(view, row, col)}`,
      });
      map.highlight(null);
    },
    highlight(cell) {
      map.highlight(cell);
      if (saved && cell) readout.replaceChildren(...pairText(saved.view, cell.row, cell.col));
      else readout.textContent = '\u00a0';
    },
  };
}
