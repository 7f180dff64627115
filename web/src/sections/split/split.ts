// Computes which numbers of x (N, 64) each head gets: after a correct split, and after a reshape without the transpose.

import { embedDim } from '../../attention/embedding.js';

/** A cell of a head's part. Indices from 0. */
export interface Place {
  readonly head: number;
  readonly token: number;
  readonly col: number;
}

/** Distance in memory between neighbors along each axis, in elements. */
export interface Strides {
  readonly head: number;
  readonly token: number;
  readonly col: number;
}

/** `wrong`: x is reshaped to (H, N, 64 / H) without the transpose. */
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

/**
 * The first cell in memory order that the reshape without the transpose fills with another number; null if there is
 * none.
 */
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
