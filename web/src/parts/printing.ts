// Printing: pages are light, and show what is otherwise drawn only when it is scrolled to.

import { createStore, type Store } from '../store.js';
import type { Theme } from './color_scale.js';
import { drawAllNow } from './draw_queue.js';
import { theme } from './theme.js';

const media = matchMedia('print');

/** Whether the page is being printed. */
export const printing: Store<boolean> = createStore(media.matches);

/** The theme to paint in: that of the page, and on paper the light one. */
export const shade: Store<Theme> = createStore('light');

const setShade = () => shade.set(printing.get() ? 'light' : theme.get());
theme.watch(setShade);
printing.watch(setShade);

function set(value: boolean): void {
  if (value) drawAllNow();
  printing.set(value);
}

media.addEventListener('change', () => set(media.matches));
window.addEventListener('beforeprint', () => set(true));
window.addEventListener('afterprint', () => set(false));
