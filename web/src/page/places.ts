// The sections of the page by name: where the visitor is, the way to each, and their links in the bar at the top.

import { createStore } from '../base/store.js';
import { el } from '../dom/dom.js';
import { placeIds, placeIn, type PlaceId } from '../state/page_state.js';

export const placeNames: Readonly<Record<PlaceId, string>> = {
  'your-sentence': 'Sentence',
  steps: 'Steps',
  gallery: 'Heads',
  train: 'Train',
  generate: 'Generate',
  own: 'Your model',
  speed: 'Speed',
  'use-it': 'Use it',
};

/**
 * The section that crosses a band at a quarter of the screen's height. The band is wider than the gap between sections,
 * so that one always crosses it, and so high that it lies in the section that a link has led to, whose top is then at the
 * top of the screen.
 */
export const currentPlace = createStore<PlaceId>('your-sentence');

const watcher = new IntersectionObserver(
  (entries) => {
    const crossing = entries.filter(({ isIntersecting }) => isIntersecting).at(-1);
    if (crossing) currentPlace.set(crossing.target.id as PlaceId);
  },
  { rootMargin: '-22% 0px -74% 0px' },
);

export function watchPlaces(sections: readonly Element[]): void {
  for (const section of sections) watcher.observe(section);
}

let release = (): void => {};

export function goToElement(target: HTMLElement | null): void {
  release();
  target?.scrollIntoView();
  if (target && !target.hasAttribute('tabindex')) target.tabIndex = -1;
  target?.focus({ preventScroll: true });
}

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

const story = '?scene=compromise';

/** The sections as links, and with the story as a list to choose from where links have no room. */
export function placeLinks(): HTMLElement {
  const links = placeIds.map((id) => el('a', { href: `#${id}` }, placeNames[id]));
  const list = el(
    'select',
    { class: 'place-list', 'aria-label': 'Go to a section' },
    ...placeIds.map((id) => el('option', { value: id }, placeNames[id])),
    el('option', { value: story }, 'Story'),
  );
  list.addEventListener('change', () => {
    if (list.value === story) location.href = story;
    else goToElement(document.getElementById(list.value));
  });
  currentPlace.watch((place: PlaceId) => {
    links.forEach((link, i) => {
      if (placeIds[i] === place) link.setAttribute('aria-current', 'true');
      else link.removeAttribute('aria-current');
    });
    list.value = place;
  });
  return el('nav', { class: 'places', 'aria-label': 'Sections' }, ...links, list);
}
