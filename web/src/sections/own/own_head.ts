// A head of the visitor's own model: its map or table.

import type { Matrix } from '../../attention/matrix.js';
import { patternIds } from '../../attention/patterns.js';
import { el, headBadge } from '../../dom/dom.js';
import type { MatrixView } from '../../maps/heat_map.js';
import { createMapFrame } from '../../maps/map_frame.js';
import type { ViewName } from '../../state/page_state.js';
import { pairText } from '../gallery/gallery_card.js';

export interface OwnHead {
  readonly element: HTMLElement;
  show(weights: Matrix, labels: readonly string[], layer: number, as: ViewName): void;
  highlight(cell: { row: number; col: number } | null): void;
}

export function createOwnHead(
  head: number,
  onPoint: (cell: { row: number; col: number } | null) => void,
): OwnHead {
  const frame = createMapFrame({ maxCell: 32, onPoint }, `the weights of head ${head + 1} of this model`);
  const readout = el('p', { class: 'readout' }, '\u00a0');
  const badge = headBadge(head + 1, patternIds[head % patternIds.length]!);
  const title = el('h3', {}, badge, el('span', { class: 'sr-only' }, `Head ${head + 1}`));
  const element = el('article', { class: 'card' }, title, frame.body, readout, frame.saves);

  return {
    element,
    show({ data, shape }, labels, layer, as) {
      const [, rows, cols] = shape as [number, number, number];
      const view: MatrixView = {
        ...{ rows, cols, rowLabels: labels, colLabels: labels, scale: 'weights' },
        data: data.subarray(head * rows * cols, (head + 1) * rows * cols),
        hidden: (row, col) => col > row,
      };
      readout.textContent = '\u00a0';
      frame.show({ view, title: `Layer ${layer}, head ${head + 1}` }, `head ${head + 1}`, as);
      frame.map.highlight(null);
    },
    highlight(cell) {
      frame.map.highlight(cell);
      const saved = frame.shown();
      if (saved && cell) readout.replaceChildren(...pairText(saved.view, cell.row, cell.col));
      else readout.textContent = '\u00a0';
    },
  };
}
