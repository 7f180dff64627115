// Heads built by hand: eight patterns, each a W_Q, W_K, W_V and W_O that an ordinary layer runs.
//
// Attention looks where q·k is large. With the position code p of embedding.ts,
// p(a)·p(b) = Σ cos(speed·(a − b)) is largest where a = b; and turning each (sin, cos) pair of p(i)
// by speed·t gives p(i + t), which is a matrix. So "the previous word" is a W_Q that turns the
// position code back by one step, against a W_K that only selects it. Words and letters match in the
// same way: two sign codes have a dot product of 16 if they are equal, and of 4 at most if not.

import { blockSize, blockStart, embedDim, speeds, type BlockName } from './embedding.js';

export const headDim = 16;

export type PatternId = 'previous' | 'first' | 'same' | 'nearby' | 'next' | 'letter' | 'average' | 'itself';

/** A matrix of (headDim, embedDim), row-major: rows are outputs. */
type Projection = Float32Array<ArrayBuffer>;

export interface Pattern {
  readonly id: PatternId;
  readonly name: string;
  /** One line for the page. */
  readonly line: string;
  /** How W_Q and W_K bring it about. */
  readonly how: string;
  /** The block that W_V copies and W_O puts back. */
  readonly carries: BlockName;
  readonly query: () => Projection;
  readonly key: () => Projection;
}

const projection = (): Projection => new Float32Array(headDim * embedDim);
const put = (w: Projection, row: number, column: number, value: number): void => {
  w[row * embedDim + column]! += value;
};

/** Rows 0 to 15 are `gain` times the features of a block. */
function select(block: BlockName, gain = 1): Projection {
  const w = projection();
  for (let i = 0; i < blockSize; i += 1) put(w, i, blockStart(block) + i, gain);
  return w;
}

/**
 * Adds gain · p(i + steps), for the given speeds, from row `row` on. The angle addition theorem:
 * sin(a + b) = sin a cos b + cos a sin b, and cos(a + b) = cos a cos b − sin a sin b.
 */
function addTurned(w: Projection, gain: number, steps: number, used: readonly number[], row = 0): Projection {
  used.forEach((f, i) => {
    const [sine, cosine] = [Math.sin(speeds[f]! * steps), Math.cos(speeds[f]! * steps)];
    const [r, c] = [row + 2 * i, blockStart('position') + 2 * f];
    put(w, r, c, gain * cosine);
    put(w, r, c + 1, gain * sine);
    put(w, r + 1, c, -gain * sine);
    put(w, r + 1, c + 1, gain * cosine);
  });
  return w;
}

const everySpeed = speeds.map((_, f) => f);
const slowest = [6, 7];
const distinct = [0, 1, 2, 7];
const constantOne = blockStart('kind');

/** A W_Q for "the token `steps` away; where there is none, the token itself". */
function at(steps: number): Projection {
  const w = addTurned(projection(), 7, steps, everySpeed);
  return addTurned(w, 3, 0, everySpeed);
}

function sameWord(wordGain: number, ownGain: number): Projection {
  const w = addTurned(projection(), ownGain, 0, distinct, 8);
  for (let i = 0; i < 8; i += 1) put(w, i, blockStart('word') + i, wordGain);
  return w;
}

export const patterns: readonly Pattern[] = [
  {
    id: 'previous',
    name: 'Previous word',
    line: 'Looks one word back. The first word has none and keeps to itself.',
    how: 'W_Q turns the position code back by one step; W_K selects it.',
    carries: 'word',
    query: () => at(-1),
    key: () => select('position'),
  },
  {
    id: 'first',
    name: 'First word',
    line: 'Looks at the first word, from anywhere.',
    how: 'W_Q makes the code of position 0 out of the constant feature; W_K selects the position code.',
    carries: 'word',
    query: () => {
      const w = projection();
      everySpeed.forEach((f) => put(w, 2 * f + 1, constantOne, 5));
      return w;
    },
    key: () => select('position'),
  },
  {
    id: 'same',
    name: 'Same word',
    line: 'Looks where the same word stands elsewhere; without one, at itself.',
    how: 'Half of each query and key is the word code, which attracts; half is the position code, which repels the word itself.',
    carries: 'word',
    query: () => sameWord(14, -6),
    key: () => sameWord(1, 1),
  },
  {
    id: 'nearby',
    name: 'Nearby words',
    line: 'A soft window over the neighbours on both sides.',
    how: 'Only the two slowest turns of the position code, whose cosines fall off gently.',
    carries: 'word',
    query: () => addTurned(projection(), 13, 0, slowest),
    key: () => addTurned(projection(), 1, 0, slowest),
  },
  {
    id: 'next',
    name: 'Next word',
    line: 'Looks one word ahead. When that is hidden or missing, at itself.',
    how: 'W_Q turns the position code forward by one step; W_K selects it.',
    carries: 'word',
    query: () => at(1),
    key: () => select('position'),
  },
  {
    id: 'letter',
    name: 'Same first letter',
    line: 'Shares itself evenly among words with the same initial.',
    how: 'W_Q and W_K both select the code of the first letter.',
    carries: 'letter',
    query: () => select('letter', 3),
    key: () => select('letter'),
  },
  {
    id: 'average',
    name: 'Average of all',
    line: 'All scores are 0, so every visible word counts the same.',
    how: 'W_Q is zero.',
    carries: 'kind',
    query: () => projection(),
    key: () => select('kind'),
  },
  {
    id: 'itself',
    name: 'Itself',
    line: 'Looks at nothing but its own place.',
    how: 'W_Q and W_K both select the position code.',
    carries: 'position',
    query: () => select('position', 5),
    key: () => select('position'),
  },
];

export const patternIds: readonly PatternId[] = patterns.map((pattern) => pattern.id);
export const patternOf = (id: PatternId): Pattern => patterns.find((pattern) => pattern.id === id)!;

export interface LayerWeights {
  /** (H·headDim, embedDim) */
  qProj: Float32Array<ArrayBuffer>;
  kProj: Float32Array<ArrayBuffer>;
  vProj: Float32Array<ArrayBuffer>;
  /** (embedDim, H·headDim) */
  outProj: Float32Array<ArrayBuffer>;
}

/**
 * The weights of a layer with these heads, in this order. W_O puts what a head carries back into its
 * block, and takes the mean where several heads share one.
 */
export function buildLayer(ids: readonly PatternId[]): LayerWeights {
  const size = headDim * embedDim;
  const [qProj, kProj, vProj, outProj] = Array.from(
    { length: 4 },
    () => new Float32Array(ids.length * size),
  ) as [Projection, Projection, Projection, Projection];
  ids.forEach((id, head) => {
    const pattern = patternOf(id);
    qProj.set(pattern.query(), head * size);
    kProj.set(pattern.key(), head * size);
    vProj.set(select(pattern.carries), head * size);
    const sharing = ids.filter((other) => patternOf(other).carries === pattern.carries).length;
    for (let i = 0; i < blockSize; i += 1) {
      const row = blockStart(pattern.carries) + i;
      outProj[row * ids.length * headDim + head * headDim + i] = 1 / sharing;
    }
  });
  return { qProj, kProj, vProj, outProj };
}
