// Printing: uses the light theme, and first draws everything that is otherwise drawn only when scrolled to.

import { createStore, type Store } from '../base/store.js';
import { drawAllNow } from './draw_queue.js';
import { theme, type Theme } from './theme.js';

const media = matchMedia('print');

/** True while the page is being printed. */
export const printing: Store<boolean> = createStore(media.matches);

/** The theme to paint in: the theme of the page, or the light theme for printing. */
export const paintTheme: Store<Theme> = createStore('light');

const setPaintTheme = () => paintTheme.set(printing.get() ? 'light' : theme.get());
theme.watch(setPaintTheme);
printing.watch(setPaintTheme);

function set(value: boolean): void {
  if (value) drawAllNow();
  printing.set(value);
}

media.addEventListener('change', () => set(media.matches));
window.addEventListener('beforeprint', () => set(true));
window.addEventListener('afterprint', () => set(false));
