// The inputs of the benchmarks, bit-identical to native/bench/inputs.cc.

export const SEEDS = { q: 1, k: 2, v: 3, mask: 4, dOut: 5 };
const WINDOW_LEFT = 128;
const isCausal = (mask) => ['causal', 'window', 'alibi'].includes(mask);
const BLOCK_KEYS = 192;

/** Numbers in [-1, 1), by a linear congruential generator with the constants of Numerical Recipes. */
export function randomFloats(count, seed) {
  const values = new Float32Array(count);
  let state = seed;
  for (let i = 0; i < count; i += 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    values[i] = state / 2 ** 31 - 1;
  }
  return values;
}

/** Random numbers of a shape, row-major. */
export function randomArray(shape, seed) {
  const count = shape.reduce((a, b) => a * b);
  return { shape, data: randomFloats(count, seed) };
}

/** Swaps the two middle axes of (batch, first, second, width). */
export function swapMiddle(data, [batch, first, second, width]) {
  const result = new Float32Array(data.length);
  for (let b = 0; b < batch; b += 1) {
    for (let i = 0; i < first; i += 1) {
      for (let j = 0; j < second; j += 1) {
        const from = ((b * first + i) * second + j) * width;
        result.set(data.subarray(from, from + width), ((b * second + j) * first + i) * width);
      }
    }
  }
  return result;
}

/** q, k and v as floats. */
export function inputsOf({ batch, heads, numKvHeads, queries, keys, width }) {
  const ofKeys = [batch, numKvHeads, keys, width];
  return [randomArray([batch, heads, queries, width], SEEDS.q), randomArray(ofKeys, SEEDS.k), randomArray(ofKeys, SEEDS.v)];
}

const strideOf = (mask) => Number(/^blocks-1of(\d)$/.exec(mask)?.[1] ?? 0);
const keptOf = ({ keys }) => Math.floor((keys * 3) / 4);

/** Fills a (queries, keys) array with value(i, j). */
function pairs({ queries, keys }, array, value) {
  for (let i = 0; i < queries; i += 1) for (let j = 0; j < keys; j += 1) array[i * keys + j] = value(i, j);
  return array;
}

/** The options of attention() for a mask, as plain arrays; `weights` is not a mask but an extra output. */
export function maskOptions(shape, mask) {
  const { batch, queries, keys } = shape;
  const options = isCausal(mask) ? { causal: 'bottomRight' } : {};
  const booleans = (see) => ({ shape: [queries, keys], data: pairs(shape, new Uint8Array(queries * keys), see) });
  const stride = strideOf(mask);
  if (stride) options.mask = booleans((_, j) => Math.floor(j / BLOCK_KEYS) % stride === 0);
  if (mask === 'boolean') {
    const random = randomFloats(queries * keys, SEEDS.mask);
    options.mask = booleans((i, j) => random[i * keys + j] >= 0);
  }
  if (mask === 'padding') {
    const data = Uint8Array.from({ length: batch * keys }, (_, at) => (at % keys < keptOf(shape) ? 1 : 0));
    options.mask = { shape: [batch, 1, 1, keys], data };
  }
  if (mask === 'lengths') options.kvLengths = new Int32Array(batch).fill(keptOf(shape));
  if (mask === 'window') options.window = { left: WINDOW_LEFT };
  if (mask === 'bias') options.bias = { shape: [queries, keys], data: randomFloats(queries * keys, SEEDS.mask) };
  if (mask === 'alibi') options.alibi = true;
  if (mask === 'weights') options.return = ['weights'];
  return options;
}

/**
 * Returns the mask as the oracle needs it: values to add to the scores of one query row, -Infinity for hidden keys.
 *
 * @param {number} slope ALiBi's slope for the compared head
 */
export function additiveRow(shape, mask, row, slope) {
  const { queries, keys } = shape;
  const position = row + keys - queries;
  const { mask: booleans, bias } = maskOptionsOnce(shape, mask);
  return Float64Array.from({ length: keys }, (_, j) => {
    if (isCausal(mask) && j > position) return -Infinity;
    if (mask === 'window' && j < position - WINDOW_LEFT) return -Infinity;
    if (mask === 'lengths' && j >= keptOf(shape)) return -Infinity;
    if (mask === 'alibi') return -slope * Math.abs(position - j);
    if (bias) return bias.data[row * keys + j];
    if (booleans) return booleans.data[booleans.shape.length === 4 ? j : row * keys + j] ? 0 : -Infinity;
    return 0;
  });
}

let last = { key: '', options: {} };
function maskOptionsOnce(shape, mask) {
  const key = `${shape.name}/${mask}`;
  if (last.key !== key) last = { key, options: maskOptions(shape, mask) };
  return last.options;
}

/**
 * Returns the number of visible query-key pairs per head, for the ideal operation count; half of all pairs when causal.
 */
export function visiblePairs(shape, mask) {
  const { queries, keys } = shape;
  const stride = strideOf(mask);
  if (stride) return queries * Array.from({ length: keys }, (_, j) => Math.floor(j / BLOCK_KEYS) % stride === 0).filter(Boolean).length;
  if (mask === 'padding' || mask === 'lengths') return queries * keptOf(shape);
  if (mask === 'window') {
    return Array.from({ length: queries }, (_, i) => Math.min(i, WINDOW_LEFT) + 1).reduce((a, b) => a + b);
  }
  return queries * keys * (isCausal(mask) ? 0.5 : 1);
}
