// Printing: pages are light, and show what is otherwise drawn only when it is scrolled to.

import { createStore, type Store } from '../store.js';
import { drawAllNow } from './draw_queue.js';

const media = matchMedia('print');

/** Whether the page is being printed. */
export const printing: Store<boolean> = createStore(media.matches);

function set(value: boolean): void {
  if (value) drawAllNow();
  printing.set(value);
}

media.addEventListener('change', () => set(media.matches));
window.addEventListener('beforeprint', () => set(true));
window.addEventListener('afterprint', () => set(false));
