// Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011), and the rule
// that selects the weights that dropout keeps; both written from their documentation.

type Four = [number, number, number, number];

/** High and low 32 bits of a product of two 32-bit numbers. */
function multiply(a: number, b: number): [high: number, low: number] {
  const product = BigInt(a) * BigInt(b);
  return [Number(product >> 32n), Number(product & 0xffff_ffffn)];
}

export function philox4x32(counter: Four, key: readonly [number, number]): Four {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  for (let round = 0; round < 10; round += 1) {
    const [high0, low0] = multiply(0xd2511f53, c0);
    const [high1, low1] = multiply(0xcd9e8d57, c2);
    [c0, c1, c2, c3] = [(high1 ^ c1 ^ k0) >>> 0, low1, (high0 ^ c3 ^ k1) >>> 0, low0];
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  return [c0, c1, c2, c3];
}

/**
 * Returns a function that is true if dropout keeps weight (b, h, i, j), by the formula in the documentation of
 * `Dropout`.
 */
export function keepsWeights(probability: number, seed: bigint) {
  const threshold = Math.round(Math.fround(probability) * 2 ** 32);
  const key = [Number(seed & 0xffff_ffffn), Number(seed >> 32n)] as const;
  let last = '';
  let words: Four = [0, 0, 0, 0];
  return (b: number, h: number, i: number, j: number): boolean => {
    const counter: Four = [Math.floor(j / 4), i, h, b];
    if (counter.join() !== last) {
      last = counter.join();
      words = philox4x32(counter, key);
    }
    return (words[j % 4] as number) >= threshold;
  };
}
