// Draws elements on or near the screen before the rest of the page.

import { drawLater, drawSoon, drawSoonIfLater } from './draw_queue.js';

interface Place {
  /** True until the observer has reported. */
  near: boolean;
  readonly draws: Set<() => void>;
}

const places = new WeakMap<Element, Place>();

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const place = places.get(target)!;
      // Hidden elements have no width. They count as near, so that they are drawn before they are shown.
      place.near = isIntersecting || boundingClientRect.width === 0;
      if (place.near) place.draws.forEach(drawSoonIfLater);
    }
  },
  // Half a screen above and below counts as near, so that scrolling seldom shows an element before it is drawn.
  { rootMargin: '50% 0px' },
);

function watched(element: Element): Place {
  let place = places.get(element);
  if (!place) {
    place = { near: true, draws: new Set() };
    places.set(element, place);
    watcher.observe(element);
  }
  return place;
}

/**
 * Returns a function that schedules `draw`: in one of the next frames if `element` is near the screen, else when it
 * comes near or when nothing has changed for a moment.
 */
export function whenSeen(element: Element, draw: () => void): () => void {
  const place = watched(element);
  place.draws.add(draw);
  return () => (place.near ? drawSoon(draw) : drawLater(draw));
}
