// Where the numbers of x (N, 64) go when it is split among heads: the right way, and by a mere reshape.

import { embedDim } from './embedding.js';

/** A cell of a head's part. Indices from 0. */
export interface Place {
  readonly head: number;
  readonly token: number;
  readonly col: number;
}

/** How far apart in memory neighbours are, in numbers. */
export interface Strides {
  readonly head: number;
  readonly token: number;
  readonly col: number;
}

/** `wrong`: x is reshaped to (H, N, 64 / H) without the transpose that the right way has. */
export function stridesOf(heads: number, tokens: number, wrong: boolean): Strides {
  const width = embedDim / heads;
  return wrong
    ? { head: tokens * width, token: width, col: 1 }
    : { head: width, token: embedDim, col: 1 };
}

/** The index in memory of a cell. */
export const indexOf = ({ head, token, col }: Place, strides: Strides): number =>
  head * strides.head + token * strides.token + col * strides.col;

/** The row and column of x at an index in memory. */
export const sourceOf = (index: number): { token: number; col: number } => ({
  token: Math.floor(index / embedDim),
  col: index % embedDim,
});

/** The first cell, in the order of memory, that the mere reshape fills with another number; null if none. */
export function firstWrong(heads: number, tokens: number): Place | null {
  const [right, wrong] = [stridesOf(heads, tokens, false), stridesOf(heads, tokens, true)];
  const width = embedDim / heads;
  for (let head = 0; head < heads; head += 1) {
    for (let token = 0; token < tokens; token += 1) {
      for (let col = 0; col < width; col += 1) {
        const place = { head, token, col };
        if (indexOf(place, right) !== indexOf(place, wrong)) return place;
      }
    }
  }
  return null;
}
