// The movements that show how a step works. The page loads this script with the first movement, which keeps the first
// transfer within 250 kB.

import { el, place } from '../../dom/dom.js';
import type { Band } from '../../maps/heat_map.js';
import type { Cell, MatrixMap } from '../../maps/matrix_map.js';

/** The parts of the figure of a number. */
export interface Moving {
  readonly value: HTMLElement;
  /** The largest product in the sentence, whose left operand is the number of the step before. */
  readonly first: HTMLElement;
  /** The strips of two operands and of their products. */
  readonly strips: HTMLElement;
  /** Each bar with its width at the start of its movement, in percent, and the part of the shared bar that it becomes. */
  readonly bars: readonly { readonly bar: HTMLElement; readonly start: string; readonly part: HTMLElement | undefined }[];
  /** Strips whose sum is the strip `sum`; empty in most steps. */
  readonly parts: readonly HTMLCanvasElement[];
  readonly sum: HTMLCanvasElement;
}

/** Milliseconds of one movement. */
const playTime = 600;

function move(target: Element | undefined, frames: Keyframe[], delay = 0): void {
  target?.animate(frames, { duration: playTime - delay, delay, easing: 'ease-out', fill: 'backwards' });
}

/**
 * Moves the operands together: two strips meet and their products light up; bars of scores become bars of powers, and then all
 * of them one bar; the weighted values of all words pile up on their sum.
 */
export function moveOperands({ strips, bars, parts, sum }: Moving): void {
  const [left, right, product] = strips.querySelectorAll('canvas');
  move(left, [
    { transform: 'translateY(-18px)', opacity: 0.3 },
    { transform: 'none', opacity: 1 },
  ]);
  move(right, [
    { transform: 'translateY(18px)', opacity: 0.3 },
    { transform: 'none', opacity: 1 },
  ]);
  move(product, [{ clipPath: 'inset(0 100% 0 0)' }, { clipPath: 'inset(0)' }], playTime / 3);
  for (const { bar, start, part } of bars) {
    move(bar, [{ width: start }, { width: bar.style.width }]);
    if (part) share(bar, part);
  }
  if (parts.length === 0) return;
  for (const part of parts) flyTo(sum.getBoundingClientRect(), pictureOf(part), part);
  move(sum, [{ opacity: 0 }, { opacity: 0.3, offset: 0.6 }, { opacity: 1 }]);
}

/** Moves a part of the shared bar from the place of its own bar to its place, once that bar has its length. */
function share(bar: Element, part: HTMLElement): void {
  const [from, to] = [bar.getBoundingClientRect(), part.getBoundingClientRect()];
  // A weight of 0 has no part.
  if (to.width === 0 || to.height === 0) return;
  const begin = `translate(${from.left - to.left}px, ${from.top - to.top}px) scale(${from.width / to.width}, ${from.height / to.height})`;
  const frames = [
    { transform: begin, transformOrigin: '0 0' },
    { transform: 'none', transformOrigin: '0 0' },
  ];
  part.animate(frames, { duration: playTime, delay: playTime, easing: 'ease-in-out', fill: 'backwards' });
}

/** Lets the number of the step before become the operand of this one. */
export function carry(from: Element | null, { first, value }: Moving): void {
  if (!from?.textContent) return;
  const to = first.textContent ? first : value;
  flyTo(to.getBoundingClientRect(), el('span', { class: 'number' }, from.textContent), from);
}

/** Lets a copy of the number of a cell drop into the cell. */
export function dropInto(map: MatrixMap, { row, col }: Cell, { value }: Moving): void {
  const layout = map.layout();
  if (!layout || !map.element.isConnected) return;
  const { left, top } = map.element.querySelector('canvas')!.getBoundingClientRect();
  const { cellWidth, cellHeight } = layout;
  const cell = new DOMRect(left + layout.left + col * cellWidth, top + layout.top + row * cellHeight, cellWidth, cellHeight);
  flyTo(cell, el('span', { class: 'number' }, value.textContent), value);
}

/** Lets the bands of a map, the columns of each head, slide together. */
export function joinBands(map: MatrixMap, bands: readonly Band[]): void {
  const layout = map.layout();
  if (!layout) return;
  const { left, cellWidth, width, height } = layout;
  const canvas = map.element.querySelector('canvas')!;
  const labels = map.element.querySelectorAll('.map-band');
  const timing = { duration: playTime, easing: 'ease-in-out' };
  const slices = bands.map(({ start, end }, i) => {
    const slice = pictureOf(canvas, 'map-slice', left + start * cellWidth, (end - start) * cellWidth, width);
    place(slice, { left: left + start * cellWidth, top: 0, width: (end - start) * cellWidth, height });
    // Narrower at first, so that gaps stand between the heads and the map needs no more room.
    const apart = [{ transform: 'scaleX(0.8)' }, { transform: 'none' }];
    slice.animate(apart, timing);
    labels[i]?.animate(apart, timing);
    return slice;
  });
  canvas.after(...slices);
  for (const mark of map.element.querySelectorAll('.map-mark')) mark.animate([{ opacity: 0 }, { opacity: 0 }], timing);
  // Hide all of the canvas but the labels of the rows while the copies of its bands move.
  const cut = { clipPath: `inset(0 ${width - left}px 0 0)` };
  const cover = canvas.animate([cut, cut], timing);
  cover.onfinish = cover.oncancel = () => slices.forEach((slice) => slice.remove());
}

/**
 * Copies a canvas with its pixels, which cloneNode() leaves out; or only a band that begins at `from` and is `wide`,
 * for a canvas of `width`, all in CSS pixels.
 */
function pictureOf(canvas: HTMLCanvasElement, name = canvas.className, from = 0, wide = 1, width = 1): HTMLCanvasElement {
  const ratio = canvas.width / width;
  const copy = el('canvas', { class: name, 'aria-hidden': 'true' });
  copy.width = Math.round(wide * ratio);
  copy.height = canvas.height;
  copy.getContext('2d')?.drawImage(canvas, from * ratio, 0, wide * ratio, canvas.height, 0, 0, copy.width, copy.height);
  return copy;
}

/** Moves `copy` from the place of `from` onto the middle of `end`, a rectangle in the window, and removes it there. */
function flyTo(end: DOMRect, copy: HTMLElement, from: Element): void {
  const stage = from.closest<HTMLElement>('section');
  if (!stage) return;
  const room = stage.getBoundingClientRect();
  const start = from.getBoundingClientRect();
  const isStrip = copy instanceof HTMLCanvasElement;
  copy.classList.add('flying');
  copy.setAttribute('aria-hidden', 'true');
  copy.style.left = `${start.left - room.left}px`;
  copy.style.top = `${start.top - room.top}px`;
  // A number has the width of its text, so that its middle meets the middle of the cell.
  if (isStrip) copy.style.width = `${start.width}px`;
  else copy.style.font = getComputedStyle(from).font;
  stage.append(copy);
  const own = copy.getBoundingClientRect();
  const across = end.left + end.width / 2 - (own.left + own.width / 2);
  const down = end.top + end.height / 2 - (own.top + own.height / 2);
  const moved = `translate(${across}px, ${down}px) scale(${isStrip ? 1 : Math.min(1, end.height / own.height) || 1})`;
  const flight = copy.animate(
    [
      { transform: 'none', opacity: 1 },
      { transform: moved, opacity: 1, offset: 0.9 },
      { transform: moved, opacity: 0 },
    ],
    { duration: playTime, easing: 'ease-in' },
  );
  flight.onfinish = flight.oncancel = () => copy.remove();
}
