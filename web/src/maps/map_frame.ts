// A map that can also be a table of numbers, with the buttons that save it.

import { createStore } from '../base/store.js';
import { el, refill } from '../dom/dom.js';
import type { ViewName } from '../state/page_state.js';
import { cellText } from './cell_text.js';
import type { MatrixView } from './heat_map.js';
import { createMap, type Cell, type MapContent, type MapOptions, type MatrixMap } from './matrix_map.js';
import type { matrixTable } from './matrix_table.js';

/** Makes tables. It loads with the sections below the first screen; until then, maps stand for tables. */
export const tables = createStore<typeof matrixTable | null>(null);

export function showMatrix(body: HTMLElement, map: MatrixMap, content: MapContent, as: ViewName): void {
  const make = tables.get();
  if (as === 'numbers' && make) {
    const table = make(content.view, content.label);
    refill(body, table.element);
    map.markIn(table.mark);
    return;
  }
  if (body.firstElementChild !== map.element) body.replaceChildren(map.element);
  map.markIn(null);
  map.show(content);
}

/** `name` is the map's name in the labels of the buttons. */
export function createMapFrame(options: MapOptions, name: string) {
  const map = createMap(options);
  const body = el('div', { class: 'column card-body' }, map.element);
  let shown: Saved | null = null;
  return {
    map,
    body,
    saves: saveButtons(name, () => shown),
    /** Shows a map or table. `spoken`: the beginning of each cell's label for screen readers, such as "head 2". */
    show(saved: Saved, spoken: string, as: ViewName): void {
      shown = saved;
      const { view, title } = saved;
      const cellLabel = ({ row, col }: Cell): string => `${spoken}, ${cellText(view, row, col)}`;
      showMatrix(body, map, { view, label: title, cellLabel }, as);
    },
    /** The argument `saved` of the last show(); null before the first. */
    shown: (): Saved | null => shown,
  };
}

export interface Saved {
  readonly view: MatrixView;
  /** Title of the picture. In small letters with hyphens it is also the name of the file. */
  readonly title: string;
}

export function saveButtons(name: string, get: () => Saved | null): HTMLElement {
  const button = (as: 'PNG' | 'CSV', what: string) => {
    const element = el('button', { class: 'save', 'aria-label': `Save ${name} as ${what}` }, as);
    element.addEventListener('click', () => {
      const saved = get();
      if (saved) void import('./save_map.js').then(({ saveMap }) => saveMap(saved, as));
    });
    return element;
  };
  const menu = el(
    'details',
    { class: 'saves' },
    el('summary', { 'aria-label': `Save ${name}` }, 'Save'),
    el('span', { class: 'save-menu' }, button('PNG', 'PNG picture'), button('CSV', 'CSV table')),
  );
  // It closes when the focus leaves it, and with Escape.
  menu.addEventListener('focusout', ({ relatedTarget }) => {
    if (!menu.contains(relatedTarget as Node | null)) menu.open = false;
  });
  menu.addEventListener('keydown', ({ key }) => {
    if (key !== 'Escape' || !menu.open) return;
    menu.open = false;
    menu.querySelector('summary')!.focus();
  });
  return menu;
}
