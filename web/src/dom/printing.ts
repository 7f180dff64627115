// Printing: uses the light theme, and first draws everything that is otherwise drawn only when scrolled to.

import { createStore, type Store } from '../base/store.js';
import { drawAllNow } from './draw_queue.js';
import { theme, type Theme } from './theme.js';

const media = matchMedia('print');

export const printing: Store<boolean> = createStore(media.matches);

/** The theme to paint in: the theme of the page, or the light theme for printing. */
export const paintTheme: Store<Theme> = createStore('light');

interface Paint {
  readonly soon: () => void;
  readonly now: () => void;
}
const painted = new WeakMap<Element, Paint>();
const repaint = (how: keyof Paint): void => document.querySelectorAll('[data-painted]').forEach((element) => painted.get(element)?.[how]());

/**
 * Paints an element again when its colors change: `soon` for another theme, `now` for paper or forced colors. Only elements in the
 * document are painted, so that an element which is dropped leaves nothing behind.
 */
export function repaints(element: HTMLElement, soon: () => void, now = soon): void {
  element.dataset['painted'] = '';
  painted.set(element, { soon, now });
}

export const forcedColors = matchMedia('(forced-colors: active)');

const setPaintTheme = () => paintTheme.set(printing.get() ? 'light' : theme.get());
theme.watch(setPaintTheme);
printing.watch(setPaintTheme);
paintTheme.watch(() => repaint('soon'));
printing.watch(() => repaint('now'));
forcedColors.addEventListener('change', () => repaint('now'));

function set(value: boolean): void {
  if (value) drawAllNow();
  printing.set(value);
}

media.addEventListener('change', () => set(media.matches));
window.addEventListener('beforeprint', () => set(true));
window.addEventListener('afterprint', () => set(false));
