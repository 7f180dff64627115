// Divides the packed sequences of a varlen call, and computes the options of each part.

import { seedWords } from '../attention/options.js';
import type { ReadTensor } from '../runtime/read_tensor.js';
import { pristine, typedArrayName } from '../runtime/typed_arrays.js';
import type { Dropout, VarlenOptions } from '../types/index.js';
import type { PoolCore } from './core.js';
import type { Range } from './shared/parts.js';

export interface Sequences {
  readonly cuQ: Int32Array;
  readonly cuK: Int32Array;
  readonly count: number;
}

/**
 * Reads the sequences. Undefined if the call cannot be divided or is invalid: it then runs whole, and the worker
 * reports any error.
 */
export function sequencesOf(
  [q, k, v]: readonly [q: ReadTensor, k: ReadTensor, v: ReadTensor],
  { cuQ: givenQ, cuK: givenK }: Pick<VarlenOptions, 'cuQ' | 'cuK'>,
): Sequences | undefined {
  if (typedArrayName(givenQ) !== 'Int32Array' || typedArrayName(givenK) !== 'Int32Array') return undefined;
  const [cuQ, cuK] = [pristine(givenQ).slice(), pristine(givenK).slice()];
  if ([q, k, v].some(({ shape }) => shape.length !== 3)) return undefined;
  const [[queries, heads = 0], [keys, numKvHeads = 0], [values, valueHeads]] = [q.shape, k.shape, v.shape];
  if (values !== keys || valueHeads !== numKvHeads || numKvHeads === 0 || heads % numKvHeads !== 0) return undefined;
  if (cuK.length !== cuQ.length || !isCumulative(cuQ, queries) || !isCumulative(cuK, keys)) return undefined;
  return { cuQ, cuK, count: cuQ.length - 1 };
}

const isCumulative = (cu: Int32Array, end: number | undefined): boolean =>
  cu[0] === 0 && cu.at(-1) === end && cu.every((each, s) => s === 0 || each >= (cu[s - 1] as number));

/** Row range of the sequences first … end − 1. */
export const rowsOf = (cu: Int32Array, first: number, end = first + 1): Range => [cu[first] as number, cu[end] as number];

const lengthAt = (cu: Int32Array, s: number): number => (cu[s + 1] as number) - (cu[s] as number);

/**
 * Divides every sequence that needs more than half of one worker's share, so that a few long sequences keep all workers
 * busy: gives `long`, the sequences that are divided and the number of workers for each, and `groups`, runs of sequences that one worker
 * computes.
 *
 * @param perScore multiplications and additions per score, over all heads
 */
export function planSequences({ settings: { leastWork }, workers: { count: workers } }: PoolCore, { cuQ, cuK, count }: Sequences, perScore: number) {
  const scores = Array.from({ length: count }, (_, s) => lengthAt(cuQ, s) * (lengthAt(cuK, s) + 32) + 1);
  const total = scores.reduce((sum, each) => sum + each, 0);
  const share = Math.max(total / workers, leastWork / perScore);
  const long: { sequence: number; workers: number; work: number }[] = [];
  const groups: { range: Range; work: number }[] = [];
  let [first, work] = [0, 0];
  const close = (end: number): void => {
    if (end > first) groups.push({ range: [first, end], work });
    [first, work] = [end, 0];
  };
  scores.forEach((each, s) => {
    if (each > share / 2 && lengthAt(cuQ, s) > 0 && lengthAt(cuK, s) > 0) {
      close(s);
      first = s + 1;
      const parts = count === 1 ? workers : Math.ceil((2 * each) / share);
      long.push({ sequence: s, workers: parts, work: each / parts });
      return;
    }
    if (work + each > share) close(s);
    work += each;
  });
  close(count);
  return { long, groups };
}

/** Options of the sequences first … end − 1 as a call of their own. Sequence s uses the dropout seed + s · 2³². */
export function optionsOfGroup<O extends { readonly dropout?: Dropout | undefined }>(options: O, { cuQ, cuK }: Sequences, [first, end]: Range) {
  const shifted = (cu: Int32Array): Int32Array => cu.slice(first, end + 1).map((each) => each - (cu[first] as number));
  return { ...optionsOfSequence(options, first), cuQ: shifted(cuQ), cuK: shifted(cuK) };
}

/** Options of one sequence, without cuQ and cuK. Throws `E_OPTION` if the seed is invalid. */
export function optionsOfSequence<O extends { readonly dropout?: Dropout | undefined }>(options: O, sequence: number) {
  const { cuQ: _, cuK: __, dropout, ...others } = options as O & { cuQ?: unknown; cuK?: unknown };
  if (dropout === undefined || sequence === 0) return { ...others, ...(dropout === undefined ? {} : { dropout }) };
  const { low, high } = seedWords(dropout.seed ?? 0, 'dropout.seed');
  const seed = BigInt.asUintN(64, BigInt(low) + ((BigInt(high) + BigInt(sequence)) << 32n));
  return { ...others, dropout: { ...dropout, seed } };
}
