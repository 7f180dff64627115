// Seeded random numbers, so that a failing case can be repeated: MULTIHEAD_SEED=123 npm test

export interface Random {
  /** In [0, 1). */
  next(): number;
  /** A whole number from least to most, both included. */
  int(low: number, high: number): number;
  pick<T>(choices: readonly T[]): T;
  /** In [-1, 1). */
  floats(length: number): Float32Array;
}

/** The seed of this run; the suites print it with every failure. */
export const runSeed = Number(process.env['MULTIHEAD_SEED'] ?? Date.now() % 1_000_000);

/** mulberry32, a public-domain generator with 32 bits of state. */
export function random(seed: number): Random {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const int = (low: number, high: number): number => low + Math.floor(next() * (high - low + 1));
  return {
    next,
    int,
    pick: (choices) => choices[int(0, choices.length - 1)] as (typeof choices)[number],
    floats: (length) => Float32Array.from({ length }, () => 2 * next() - 1),
  };
}
