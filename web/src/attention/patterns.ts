// Hand-built heads: eight attention patterns, each given by its W_Q, W_K, W_V and W_O. An ordinary multi-head attention
// module runs them.
//
// A weight is large if q·k is large. With the position code p of embedding.ts, p(a)·p(b) = Σ cos(speed·(a − b)) is
// largest for a = b. Rotating each (sin, cos) pair of p(i) by speed·t gives p(i + t), and a rotation is a matrix. So
// for "Previous word", W_Q rotates the position code back by one step, and W_K selects the position code unchanged.
// Words and letters are matched by their sign codes: the dot product of two codes is 16 if they are equal and at most 4
// if not. "Same word" uses only the first 8 signs: 8 if equal, at most 4 if not.

import { blockSize, blockStart, embedDim, speeds, type BlockName } from './embedding.js';

export const headDim = 16;

export type PatternId = 'previous' | 'first' | 'same' | 'nearby' | 'next' | 'letter' | 'average' | 'itself';

/** A matrix of (headDim, embedDim), row-major: rows are outputs. */
type Projection = Float32Array<ArrayBuffer>;

export interface Pattern {
  readonly id: PatternId;
  readonly name: string;
  readonly line: string;
  /** The block of x that W_V copies, and that W_O writes back to. */
  readonly carries: BlockName;
  readonly query: () => Projection;
  readonly key: () => Projection;
}

const projection = (): Projection => new Float32Array(headDim * embedDim);
const put = (w: Projection, row: number, column: number, value: number): void => {
  w[row * embedDim + column]! += value;
};

/** A projection whose 16 outputs are the features of a block times `gain`. */
function select(block: BlockName, gain = 1): Projection {
  const w = projection();
  for (let i = 0; i < blockSize; i += 1) put(w, i, blockStart(block) + i, gain);
  return w;
}

/**
 * Adds gain · p(i + steps) for the given speeds, to the outputs from `row` on. By the angle addition
 * theorem, sin(a + b) = sin a cos b + cos a sin b and cos(a + b) = cos a cos b − sin a sin b.
 */
function addRotated(w: Projection, gain: number, steps: number, used: readonly number[], row = 0): Projection {
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

/**
 * A W_Q that matches the token `steps` away. A second term with a smaller gain matches the token itself, if there is no
 * token `steps` away.
 */
function at(steps: number): Projection {
  const w = addRotated(projection(), 7, steps, everySpeed);
  return addRotated(w, 3, 0, everySpeed);
}

function sameWord(wordGain: number, ownGain: number): Projection {
  const w = addRotated(projection(), ownGain, 0, distinct, 8);
  for (let i = 0; i < 8; i += 1) put(w, i, blockStart('word') + i, wordGain);
  return w;
}

export const patterns: readonly Pattern[] = [
  {
    id: 'previous',
    name: 'Previous word',
    line: 'Looks at the previous word. The first word has none and looks at itself.',
    carries: 'word',
    query: () => at(-1),
    key: () => select('position'),
  },
  {
    id: 'first',
    name: 'First word',
    line: 'Every word looks at the first word.',
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
    line: 'Looks at other occurrences of the same word. If there are none, it looks at itself.',
    carries: 'word',
    query: () => sameWord(14, -6),
    key: () => sameWord(1, 1),
  },
  {
    id: 'nearby',
    name: 'Nearby words',
    line: 'Looks at its neighbors on both sides, less the further they are.',
    carries: 'word',
    query: () => addRotated(projection(), 13, 0, slowest),
    key: () => addRotated(projection(), 1, 0, slowest),
  },
  {
    id: 'next',
    name: 'Next word',
    line: 'Looks at the next word. If that is hidden or missing, it looks at itself.',
    carries: 'word',
    query: () => at(1),
    key: () => select('position'),
  },
  {
    id: 'letter',
    name: 'Same first letter',
    line: 'Looks at all words with the same first letter equally.',
    carries: 'letter',
    query: () => select('letter', 3),
    key: () => select('letter'),
  },
  {
    id: 'average',
    name: 'Average of all',
    line: 'All scores are 0, so all visible words have the same weight.',
    carries: 'kind',
    query: () => projection(),
    key: () => select('kind'),
  },
  {
    id: 'itself',
    name: 'Itself',
    line: 'Looks only at its own position.',
    carries: 'position',
    query: () => select('position', 5),
    key: () => select('position'),
  },
];

export const patternIds: readonly PatternId[] = patterns.map((pattern) => pattern.id);
export const patternOf = (id: PatternId): Pattern => patterns.find((pattern) => pattern.id === id)!;

/** The pattern whose color head number `head` of a model has. */
export const colorOf = (head: number): PatternId => patternIds[head % patternIds.length]!;

export interface NamedHeads {
  readonly heads: readonly PatternId[];
  readonly given?: { readonly names: readonly string[]; readonly lines?: readonly string[] } | null | undefined;
}
export const headName = ({ heads, given }: NamedHeads, head: number): string => given?.names[head] ?? patternOf(heads[head]!).name;
/** Names a head and says its rule, or the score that was measured of it. */
export function aboutHead(named: NamedHeads, head: number): string {
  const line = named.given ? named.given.lines?.[head] : patternOf(named.heads[head]!).line;
  return `${headName(named, head)}${line ? `: ${line}` : ''}`;
}

export interface ModuleWeights {
  /** (H·headDim, embedDim) */
  qProj: Float32Array<ArrayBuffer>;
  kProj: Float32Array<ArrayBuffer>;
  vProj: Float32Array<ArrayBuffer>;
  /** (embedDim, H·headDim) */
  outProj: Float32Array<ArrayBuffer>;
  /** (3·H·headDim): the biases of q, k and v. Hand-built heads have none. */
  inBias?: Float32Array<ArrayBuffer>;
  /** (embedDim); present if inBias is. */
  outBias?: Float32Array<ArrayBuffer>;
}

/**
 * The weights of a module with these heads, in this order. W_O writes the output of each head to the block that its
 * values came from. If several heads share a block, it writes their mean.
 */
export function buildWeights(ids: readonly PatternId[]): ModuleWeights {
  const size = headDim * embedDim;
  const empty = (): Projection => new Float32Array(ids.length * size);
  const [qProj, kProj, vProj, outProj] = [empty(), empty(), empty(), empty()];
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
