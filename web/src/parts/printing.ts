// Printing: pages are light, and show what is otherwise drawn only when it is scrolled to.

import { createStore, type Store } from '../store.js';

const media = matchMedia('print');

/** Whether the page is being printed. */
export const printing: Store<boolean> = createStore(media.matches);

media.addEventListener('change', () => printing.set(media.matches));
window.addEventListener('beforeprint', () => printing.set(true));
window.addEventListener('afterprint', () => printing.set(false));
