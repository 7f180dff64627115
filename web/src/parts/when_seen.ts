// Draws what is on the screen, or near it, before the rest of the page.

import { drawLater, drawSoon, hurry } from './draw_queue.js';

interface Place {
  /** True until the browser has reported. */
  near: boolean;
  readonly draws: Set<() => void>;
}

const places = new WeakMap<Element, Place>();

const watcher = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const place = places.get(target)!;
      // What is hidden now is drawn before it is shown.
      place.near = isIntersecting || boundingClientRect.width === 0;
      if (place.near) place.draws.forEach(hurry);
    }
  },
  // Half a screen more, so that little is seen to be drawn while the page scrolls.
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
 * A function that asks for `draw`: in one of the next frames if `element` is near the screen, else once it comes there
 * or nothing changes for a moment.
 */
export function whenSeen(element: Element, draw: () => void): () => void {
  const place = watched(element);
  place.draws.add(draw);
  return () => (place.near ? drawSoon(draw) : drawLater(draw));
}
