// The sections of the page by name: where the visitor is, and the way to each.

import { createStore } from '../base/store.js';
import { placeIn, type PlaceId } from '../state/page_state.js';

export const placeNames: Readonly<Record<PlaceId, string>> = {
  'your-sentence': 'Sentence',
  steps: 'Steps',
  reveal: 'Split',
  gallery: 'Heads',
  bend: 'Bend',
  train: 'Train',
  generate: 'Generate',
  own: 'Your model',
  speed: 'Speed',
  'use-it': 'Use it',
};

/** The section that crosses the line at two fifths of the screen's height. */
export const currentPlace = createStore<PlaceId>('your-sentence');

const watcher = new IntersectionObserver(
  (entries) => {
    const crossing = entries.filter(({ isIntersecting }) => isIntersecting).at(-1);
    if (crossing) currentPlace.set(crossing.target.id as PlaceId);
  },
  { rootMargin: '-40% 0px -59% 0px' },
);

export function watchPlaces(sections: readonly Element[]): void {
  for (const section of sections) watcher.observe(section);
}

let release = (): void => {};

/** Moves the view and the focus to an element of the page. */
export function goToElement(target: HTMLElement | null): void {
  release();
  target?.scrollIntoView();
  if (target && !target.hasAttribute('tabindex')) target.tabIndex = -1;
  target?.focus({ preventScroll: true });
}

/** Goes to the section that the address names, if it names one. */
export function goToPlaceInAddress(): void {
  const place = placeIn(location.hash);
  const target = place ? document.getElementById(place) : null;
  if (!target) return;
  goToElement(target);
  hold(target);
}

const touches = ['pointerdown', 'pointermove', 'wheel', 'keydown'] as const;

/**
 * Keeps an element in view until the visitor's first touch: the maps of the sections above it get their heights when they
 * are drawn.
 */
function hold(target: HTMLElement): void {
  const heights = new ResizeObserver(() => target.scrollIntoView());
  for (const section of target.parentElement!.children) heights.observe(section);
  release = () => {
    heights.disconnect();
    for (const touch of touches) document.removeEventListener(touch, release);
  };
  for (const touch of touches) document.addEventListener(touch, release, { passive: true });
}

/** The address of the page's state, with the section in view. */
export function addressWithPlace(): string {
  const place = currentPlace.get();
  if (place === 'your-sentence' || placeIn(location.hash)) return location.href;
  return `${location.href}${location.hash ? '&' : '#'}at=${place}`;
}
