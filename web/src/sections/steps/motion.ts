// What moves for a moment after a new step is shown. Nothing moves if the visitor prefers reduced motion.

import { el } from '../../dom/dom.js';

/** Milliseconds of one movement. */
export const playTime = 600;
export const stillness = matchMedia('(prefers-reduced-motion: reduce)');

/** A copy of a canvas with what it shows: cloneNode() copies no pixels. */
export function picture(canvas: HTMLCanvasElement): HTMLCanvasElement {
  const copy = el('canvas', { class: canvas.className });
  copy.width = canvas.width;
  copy.height = canvas.height;
  if (canvas.width > 0 && canvas.height > 0) copy.getContext('2d')?.drawImage(canvas, 0, 0);
  return copy;
}

/**
 * Moves `copy` from the place of the element `from` onto the middle of `target`, an element or a rectangle in the window,
 * and removes it there.
 */
export function flyTo(target: Element | DOMRect, copy: HTMLElement, from: Element): void {
  const stage = from.closest<HTMLElement>('.step-detail');
  if (!stage) return;
  const room = stage.getBoundingClientRect();
  const start = from.getBoundingClientRect();
  const end = target instanceof Element ? target.getBoundingClientRect() : target;
  copy.classList.add('flying');
  copy.setAttribute('aria-hidden', 'true');
  copy.style.left = `${start.left - room.left}px`;
  copy.style.top = `${start.top - room.top}px`;
  // A number has the width of its text, so that its middle meets the middle of the cell.
  if (copy instanceof HTMLCanvasElement) copy.style.width = `${start.width}px`;
  else copy.style.font = getComputedStyle(from).font;
  stage.append(copy);
  const own = copy.getBoundingClientRect();
  const across = end.left + end.width / 2 - (own.left + own.width / 2);
  const down = end.top + end.height / 2 - (own.top + own.height / 2);
  const scale = Math.min(1, end.height / own.height);
  const moved = `translate(${across}px, ${down}px) scale(${copy instanceof HTMLCanvasElement ? 1 : scale})`;
  const animation = copy.animate(
    [{ transform: 'none', opacity: 1 }, { transform: moved, opacity: 1, offset: 0.9 }, { transform: moved, opacity: 0 }],
    { duration: playTime, easing: 'ease-in' },
  );
  animation.onfinish = animation.oncancel = () => copy.remove();
}
