// The changes that a visitor makes to a forward pass, and the mask: the keys that a query may see.

/** Divisor of the scores: √d_head, √d_model (a common mistake), or 1. */
export type Divisor = 'head' | 'model' | 'none';
export const divisors: readonly Divisor[] = ['head', 'model', 'none'];

/** A weight set by hand. Indices from 0. */
export interface WeightEdit {
  readonly head: number;
  readonly query: number;
  readonly key: number;
  /** From 0 to 1. */
  readonly weight: number;
}

export interface Bend {
  /** Number of tokens on each side that a query may see; −1 for all. */
  readonly window: number;
  /** The scores are divided by it. */
  readonly temperature: number;
  readonly divisor: Divisor;
  /** Indices of heads whose output is replaced by 0, in ascending order. */
  readonly muted: readonly number[];
  /** True: skips W_O, so that the output is the merged heads. */
  readonly withoutOutput: boolean;
  readonly edits: readonly WeightEdit[];
}

export const unbent: Bend = { window: -1, temperature: 1, divisor: 'head', muted: [], withoutOutput: false, edits: [] };

export const maxWindow = 16;
export const maxEdits = 64;
export const temperatureRange = [0.1, 10] as const;

export const isUnbent = (bend: Bend): boolean => JSON.stringify(bend) === JSON.stringify(unbent);

/** True if the mask hides a key from a query: the key comes later (causal), or is more than `window` tokens away. */
export function hides(causal: boolean, window: number, query: number, key: number): boolean {
  return (causal && key > query) || (window >= 0 && Math.abs(key - query) > window);
}

/** The edits that lie within `tokens` and `heads` and that the mask does not hide. */
export function fitting(bend: Bend, causal: boolean, tokens: number, heads: number): WeightEdit[] {
  return bend.edits.filter(({ head, query, key }) => head < heads && query < tokens && key < tokens && !hides(causal, bend.window, query, key));
}

/** Below this sum, the weights that were not set are rounding noise: they get equal shares. */
const negligible = 1e-6;

/**
 * A row of weights after `set` fixed the weights of some keys. The other visible weights keep their proportions and
 * fill the row up to 1. If the fixed weights exceed 1 in sum, or no other key is visible, they are divided by their
 * sum; if that sum is 0, all visible weights are equal.
 */
export function editedRow(row: ArrayLike<number>, set: ReadonlyMap<number, number>, hidden: (key: number) => boolean): number[] {
  const keys = Array.from(row, (_, key) => key).filter((key) => !hidden(key));
  const free = keys.filter((key) => !set.has(key));
  const given = keys.reduce((sum, key) => sum + (set.get(key) ?? 0), 0);
  const left = free.length > 0 ? Math.max(0, 1 - given) : 0;
  const others = free.reduce((sum, key) => sum + row[key]!, 0);
  const share = (key: number): number => {
    const weight = set.get(key);
    if (weight === undefined) return left * (others < negligible ? 1 / free.length : row[key]! / others);
    if (left + given === 0) return 1 / keys.length;
    return weight / (left + given);
  };
  return Array.from(row, (_, key) => (hidden(key) ? 0 : share(key)));
}
