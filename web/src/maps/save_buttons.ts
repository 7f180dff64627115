// The buttons that save a map as a file.

import { el } from '../dom/dom.js';
import type { MatrixView } from './heat_map.js';

export interface Saved {
  readonly view: MatrixView;
  /** Title of the picture. In small letters with hyphens it is also the name of the file. */
  readonly title: string;
}

/** Makes two buttons that save the result of `get`. */
export function saveButtons(name: string, get: () => Saved | null): HTMLElement {
  const button = (as: 'PNG' | 'CSV', what: string) => {
    const element = el('button', { class: 'save', 'aria-label': `Save ${name} as ${what}` }, as);
    element.addEventListener('click', () => {
      const saved = get();
      if (saved) void import('./save_map.js').then(({ saveMap }) => saveMap(saved, as));
    });
    return element;
  };
  return el('span', { class: 'saves' }, button('PNG', 'PNG picture'), button('CSV', 'CSV table'));
}
