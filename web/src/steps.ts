// The ten steps from x to the output: what each is called, does, and looks like.

import { blocks, blockSize } from './embedding.js';
import type { ForwardResult, Matrix, Trace } from './messages.js';
import type { StepId } from './page_state.js';
import { headDim } from './patterns.js';
import type { FormulaName } from './parts/formulas.js';
import type { Band, MatrixView } from './parts/heat_map.js';

export interface Part {
  /** As the button says it. */
  readonly label: string;
  readonly trace: keyof Trace;
  readonly formula: FormulaName;
}

export interface Step {
  readonly id: StepId;
  readonly title: string;
  /** As the list says it. */
  readonly symbol: string;
  readonly text: string;
  /** What there is to look at: more than one for q, k and v. */
  readonly parts: readonly Part[];
  /** Names of the axes of the trace's shape. */
  readonly axes: string;
}

const letters = ['q', 'k', 'v'] as const;

export const steps: readonly Step[] = [
  {
    id: 'x',
    title: 'Embed the tokens',
    symbol: 'x',
    text: 'Each token becomes a row of 64 numbers: where it stands, which word it is, its first letter, and what kind of word it looks like.',
    parts: [{ label: 'x', trace: 'x', formula: 'x' }],
    axes: 'batch, tokens, features',
  },
  {
    id: 'project',
    title: 'Project to queries, keys and values',
    symbol: 'q, k, v',
    text: 'Three matrices turn each row into what it looks for (q), what it offers to be found by (k), and what it hands over (v), for all heads at once.',
    parts: letters.map((name) => ({ label: name, trace: name, formula: name })),
    axes: 'batch, tokens, heads · d_head',
  },
  {
    id: 'split',
    title: 'Split into heads',
    symbol: 'split',
    text: 'Every head takes its own 16 columns. No number changes; from here on the heads do not see each other.',
    parts: letters.map((name) => ({ label: name, trace: `${name}Heads`, formula: 'split' })),
    axes: 'batch, heads, tokens, d_head',
  },
  {
    id: 'scores',
    title: 'Score every pair',
    symbol: 'q · k',
    text: 'The dot product of a query with each key: large where what is looked for and what is offered agree.',
    parts: [{ label: 'scores', trace: 'scores', formula: 'scores' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'scale',
    title: 'Scale',
    symbol: '÷ √d',
    text: 'Dividing by √16 = 4 keeps the size of the scores independent of the width of a head.',
    parts: [{ label: 'scaled scores', trace: 'scaledScores', formula: 'scale' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'mask',
    title: 'Mask',
    symbol: 'mask',
    text: 'With the causal mask on, a query sees itself and what came before. Everything later becomes −∞. With it off, this step changes nothing.',
    parts: [{ label: 'masked scores', trace: 'maskedScores', formula: 'mask' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'softmax',
    title: 'Softmax',
    symbol: 'softmax',
    text: 'Each row becomes shares that add up to 1: the attention weights. A score of −∞ becomes exactly 0.',
    parts: [{ label: 'weights', trace: 'weights', formula: 'softmax' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'values',
    title: 'Mix the values',
    symbol: 'w · v',
    text: 'A query receives the values of all keys, each in proportion to its weight.',
    parts: [{ label: 'head output', trace: 'headsOut', formula: 'values' }],
    axes: 'batch, heads, tokens, d_head',
  },
  {
    id: 'merge',
    title: 'Merge the heads',
    symbol: 'merge',
    text: 'The outputs of the heads side by side again, 16 columns each.',
    parts: [{ label: 'merged', trace: 'merged', formula: 'merge' }],
    axes: 'batch, tokens, heads · d_head',
  },
  {
    id: 'output',
    title: 'Project the output',
    symbol: 'W_O',
    text: 'One last matrix puts what the heads carried back into the blocks of x it came from, so that the next layer can read it.',
    parts: [{ label: 'output', trace: 'output', formula: 'output' }],
    axes: 'batch, tokens, features',
  },
];

export const stepOf = (id: StepId): Step => steps.find((step) => step.id === id)!;

export const isPerHead = (matrix: Matrix): boolean => matrix.shape.length === 4;

const blockBands: readonly Band[] = blocks.map(({ name, start }) => ({
  label: name,
  start,
  end: start + blockSize,
  className: `block-${name}`,
}));

/** The matrix of a step, of one head where there are several, ready to be shown. */
export function viewOf(result: ForwardResult, name: keyof Trace, head: number): MatrixView {
  const { tokens, causal, heads } = result;
  const matrix = result.trace[name];
  const cols = matrix.shape.at(-1)!;
  const size = tokens.length * cols;
  const start = isPerHead(matrix) ? head * size : 0;
  const base = {
    rows: tokens.length,
    cols,
    data: matrix.data.subarray(start, start + size),
    rowLabels: tokens,
    scale: name === 'weights' ? 'weights' : 'signed',
  } as const;
  if (name === 'x' || name === 'output') return { ...base, bands: blockBands };
  if (name === 'q' || name === 'k' || name === 'v' || name === 'merged') {
    const bands = heads.map((id, h) => ({
      label: String(h + 1),
      start: h * headDim,
      end: (h + 1) * headDim,
      className: `head-${id}`,
    }));
    return { ...base, bands };
  }
  if (/heads/i.test(name)) return base;
  const masked = causal && (name === 'maskedScores' || name === 'weights');
  return {
    ...base,
    colLabels: tokens,
    ...(masked && { hidden: (row: number, col: number) => col > row }),
  };
}
