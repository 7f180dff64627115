// The ten steps from x to the output: their titles, texts and matrices.

import { fitting, hides } from './bend.js';
import { blocks, blockSize } from './embedding.js';
import type { ForwardResult, Matrix, Trace } from './messages.js';
import type { StepId } from './page_state.js';
import { headDim } from './patterns.js';
import type { FormulaName } from './parts/formulas.js';
import { tokenNames } from './tokens.js';
import type { Band, MatrixView } from './parts/heat_map.js';

export interface Part {
  /** Text of the button. */
  readonly label: string;
  readonly trace: keyof Trace;
  readonly formula: FormulaName;
}

export interface Step {
  readonly id: StepId;
  readonly title: string;
  /** Short name in the list of steps. */
  readonly symbol: string;
  readonly text: string;
  /** The matrices of the step: three where q, k and v differ, else one. */
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
    text: 'Each token becomes a row of 64 numbers, its features: codes for its position, its word and its first letter, and traits of its spelling.',
    parts: [{ label: 'x', trace: 'x', formula: 'x' }],
    axes: 'batch, tokens, features',
  },
  {
    id: 'project',
    title: 'Project to queries, keys and values',
    symbol: 'q, k, v',
    text: 'Three matrices turn each row into a query (q: what the token looks for), a key (k: what other tokens compare their queries with) and a value (v: what it passes on), for all heads at once.',
    parts: letters.map((name) => ({ label: name, trace: name, formula: name })),
    axes: 'batch, tokens, heads · d_head',
  },
  {
    id: 'split',
    title: 'Split into heads',
    symbol: 'split',
    text: 'Each head gets 16 columns of q, k and v. No number changes. From here on, every head works by itself.',
    parts: letters.map((name) => ({ label: name, trace: `${name}Heads`, formula: 'split' })),
    axes: 'batch, heads, tokens, d_head',
  },
  {
    id: 'scores',
    title: 'Score every pair',
    symbol: 'q · k',
    text: 'The dot product of each query with each key. It is large where the two match.',
    parts: [{ label: 'scores', trace: 'scores', formula: 'scores' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'scale',
    title: 'Scale',
    symbol: '÷ √d',
    text: 'Dividing by √16 = 4 keeps the scores from growing with the head dimension, which is 16 here.',
    parts: [{ label: 'scaled scores', trace: 'scaledScores', formula: 'scale' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'mask',
    title: 'Mask',
    symbol: 'mask',
    text: 'With the causal mask on, a query sees its own token and earlier ones; the scores of later tokens become −∞. With the mask off, this step changes nothing.',
    parts: [{ label: 'masked scores', trace: 'maskedScores', formula: 'mask' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'softmax',
    title: 'Softmax',
    symbol: 'softmax',
    text: 'The softmax turns each row of scores into attention weights that add up to 1. A score of −∞ becomes exactly 0.',
    parts: [{ label: 'weights', trace: 'weights', formula: 'softmax' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'values',
    title: 'Mix the values',
    symbol: 'w · v',
    text: 'The output of a query is the sum of all values, each multiplied by its weight.',
    parts: [{ label: 'head output', trace: 'headsOut', formula: 'values' }],
    axes: 'batch, heads, tokens, d_head',
  },
  {
    id: 'merge',
    title: 'Merge the heads',
    symbol: 'merge',
    text: 'The outputs of the heads are put side by side, 16 columns each.',
    parts: [{ label: 'merged', trace: 'merged', formula: 'merge' }],
    axes: 'batch, tokens, heads · d_head',
  },
  {
    id: 'output',
    title: 'Project the output',
    symbol: 'W_O',
    text: 'A last matrix puts the output of each head back into the block of x that its values came from, where a next layer would read it.',
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

/** The matrix of a step with its labels; for a step with one matrix per head, that of `head`. */
export function viewOf(result: ForwardResult, name: keyof Trace, head: number): MatrixView {
  const { tokens, causal, heads, bend } = result;
  const names = tokenNames(tokens);
  const matrix = result.trace[name];
  const cols = matrix.shape.at(-1)!;
  const size = tokens.length * cols;
  const start = isPerHead(matrix) ? head * size : 0;
  const base = {
    rows: tokens.length,
    cols,
    data: matrix.data.subarray(start, start + size),
    rowLabels: names,
    scale: name === 'weights' ? 'weights' : 'signed',
  } as const;
  const mergedHeads = name === 'merged' || (name === 'output' && bend.withoutOutput);
  if (name === 'x' || (name === 'output' && !mergedHeads)) return { ...base, bands: blockBands };
  if (name === 'q' || name === 'k' || name === 'v' || mergedHeads) {
    const bands = heads.map((id, h) => ({
      label: String(h + 1),
      start: h * headDim,
      end: (h + 1) * headDim,
      className: `head-${id}`,
    }));
    return { ...base, bands };
  }
  if (/heads/i.test(name)) return base;
  const hidesSome = causal || bend.window >= 0;
  const masked = hidesSome && (name === 'maskedScores' || name === 'weights');
  return {
    ...base,
    colLabels: names,
    ...(name === 'weights' && editedOf(result, head)),
    ...(masked && { hidden: (row: number, col: number) => hides(causal, bend.window, row, col) }),
  };
}

function editedOf({ bend, causal, tokens, heads }: ForwardResult, head: number): Pick<MatrixView, 'edited'> {
  const edits = fitting(bend, causal, tokens.length, heads.length).filter((edit) => edit.head === head);
  if (edits.length === 0) return {};
  const places = new Set(edits.map(({ query, key }) => query * tokens.length + key));
  return { edited: (row, col) => places.has(row * tokens.length + col) };
}
