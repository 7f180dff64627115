// Pseudo-random numbers that are the same in every run.

/** Returns a function that gives the next number from 0 to 1, by a linear congruential generator (Numerical Recipes). */
export function uniform(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
