// The part of q that one head gets: its name in its color, and its map or table.

import { colorOf } from '../../attention/patterns.js';
import { formatNumber } from '../../base/format.js';
import { el, headBadge } from '../../dom/dom.js';
import type { MatrixView } from '../../maps/heat_map.js';
import { showMatrix } from '../../maps/map_frame.js';
import { createMap, type Cell } from '../../maps/matrix_map.js';
import type { ViewName } from '../../state/page_state.js';
import type { Place } from './split.js';

export type Block = ReturnType<typeof createBlock>;

export function createBlock(head: number, onPoint: (place: Place | null) => void) {
  const name = el('p', { class: 'reveal-head' });
  const body = el('div', { class: 'reveal-body' });
  const element = el('div', { class: 'reveal-block' }, name, body);
  const map = createMap({
    maxCell: 28,
    sizer: body,
    onPoint: (cell) => onPoint(cell && { head, token: cell.row, col: cell.col }),
  });
  return {
    element,
    /** `of`: number of blocks. `left`: true for the columns that are left over and belong to no head. */
    show(view: MatrixView, { of, as, left }: { of: number; as: ViewName; left: boolean }): void {
      const pattern = colorOf(head);
      element.className = `reveal-block head-${pattern}${left ? ' is-left' : ''}`;
      element.style.setProperty('--place', String((of - 1) / 2 - head));
      name.replaceChildren(
        ...(left ? ['left'] : [headBadge(head + 1, pattern), el('span', { class: 'sr-only' }, `Head ${head + 1}`)]),
      );
      const where = left ? 'left over' : `head ${head + 1}`;
      const label = `q, ${where}: ${view.rows} by ${view.cols}`;
      const cellLabel = ({ row, col }: Cell): string =>
        `${where}, token ${view.rowLabels[row]}, column ${col + 1}, ${formatNumber(view.data[row * view.cols + col]!, 2)}`;
      showMatrix(body, map, { view, label, cellLabel }, as);
    },
    highlight(place: Place | null): void {
      map.highlight(place && { row: place.token, col: place.col });
    },
  };
}
