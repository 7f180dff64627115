// The line that a screen reader announces.

import { el } from './dom.js';

const line = el('p', { class: 'sr-only', id: 'said', role: 'status' });
/** Milliseconds in which only the last sentence counts: one choice changes what several sections say. */
const pause = 150;
let timer: ReturnType<typeof setTimeout> | undefined;

/** Announces a sentence about an element, unless the visitor is at work in another section. */
export function say(sentence: string, about: Element): void {
  const section = document.activeElement?.closest('section');
  if (section && !section.contains(about)) return;
  if (!line.isConnected) document.querySelector('main')!.append(line);
  clearTimeout(timer);
  timer = setTimeout(() => (line.textContent = sentence), pause);
}

/** True if a part of the element's section is on the screen. */
export function isOnScreen(element: Element): boolean {
  const { top, bottom } = (element.closest('section') ?? element).getBoundingClientRect();
  return bottom > 0 && top < innerHeight;
}
