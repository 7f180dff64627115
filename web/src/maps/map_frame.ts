// A map that can also be a table of numbers, with the buttons that save it.

import { el, refill } from '../dom/dom.js';
import type { ViewName } from '../state/page_state.js';
import { cellText } from './cell_text.js';
import { createMap, type Cell, type MapContent, type MapOptions, type MatrixMap } from './matrix_map.js';
import { matrixTable } from './matrix_table.js';
import { saveButtons, type Saved } from './save_buttons.js';

export interface MapFrame {
  readonly map: MatrixMap;
  /** Holds the map or the table. */
  readonly body: HTMLElement;
  readonly saves: HTMLElement;
  /** Shows a map or table. `spoken`: the beginning of each cell's label for screen readers, such as "head 2". */
  show(saved: Saved, spoken: string, as: ViewName): void;
  /** The argument `saved` of the last show(); null before the first. */
  shown(): Saved | null;
}

/** Shows a matrix in `body` as a map or as a table of numbers. */
export function showMatrix(body: HTMLElement, map: MatrixMap, content: MapContent, as: ViewName): void {
  if (as === 'numbers') {
    const table = matrixTable(content.view, content.label);
    refill(body, table.element);
    map.markIn(table.mark);
    return;
  }
  if (body.firstElementChild !== map.element) body.replaceChildren(map.element);
  map.markIn(null);
  map.show(content);
}

/** `name` is the map's name in the labels of the buttons. */
export function createMapFrame(options: MapOptions, name: string): MapFrame {
  const map = createMap(options);
  const body = el('div', { class: 'card-body' }, map.element);
  let shown: Saved | null = null;
  return {
    map,
    body,
    saves: saveButtons(name, () => shown),
    show(saved, spoken, as) {
      shown = saved;
      const { view, title } = saved;
      const cellLabel = ({ row, col }: Cell): string => `${spoken}, ${cellText(view, row, col)}`;
      showMatrix(body, map, { view, label: title, cellLabel }, as);
    },
    shown: () => shown,
  };
}
