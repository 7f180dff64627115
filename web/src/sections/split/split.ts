// Computes which numbers of q (N, width) each head gets: after a correct split, and after a reshape without the transpose.

/** A cell of a head's part. Indices from 0. */
export interface Place {
  readonly head: number;
  readonly token: number;
  readonly col: number;
}

/** Distance in memory between neighbors along each axis, in elements. */
export type Strides = Place;

/** The matrix to split, (tokens, width), and the number of heads that share its columns. */
export interface SplitSize {
  readonly heads: number;
  readonly tokens: number;
  readonly width: number;
}

/** `wrong`: q is reshaped to (H, N, width / H) without the transpose. */
export function stridesOf({ heads, tokens, width: whole }: SplitSize, wrong: boolean): Strides {
  const width = whole / heads;
  return wrong ? { head: tokens * width, token: width, col: 1 } : { head: width, token: whole, col: 1 };
}

export const indexOf = ({ head, token, col }: Place, strides: Strides): number => head * strides.head + token * strides.token + col * strides.col;

export const sourceOf = (index: number, width: number): { token: number; col: number } => ({
  token: Math.floor(index / width),
  col: index % width,
});

/** The cells of all heads, in the order of a head's rows. */
export function placesOf({ heads, tokens, width }: SplitSize): Place[] {
  const cols = width / heads;
  return Array.from({ length: tokens * width }, (_, at) => ({
    head: Math.floor(at / (tokens * cols)),
    token: Math.floor(at / cols) % tokens,
    col: at % cols,
  }));
}

/**
 * The first cell in memory order that the reshape without the transpose fills with another number; null if there is
 * none.
 */
export function firstWrong(size: SplitSize): Place | null {
  const [right, wrong] = [stridesOf(size, false), stridesOf(size, true)];
  return placesOf(size).find((place) => indexOf(place, right) !== indexOf(place, wrong)) ?? null;
}
