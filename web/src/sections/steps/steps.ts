// The ten steps from x to the output: their titles, texts and formulas.

import type { ForwardResult, Trace } from '../../attention/messages.js';
import { formatRoot } from '../../base/format.js';
import type { StepId } from '../../state/page_state.js';
import type { FormulaName } from './formulas.js';

export interface Part {
  readonly label: string;
  readonly trace: keyof Trace;
  readonly formula: FormulaName;
}

export interface Step {
  readonly id: StepId;
  readonly title: string;
  /** Short name in the map of the flow. */
  readonly symbol: string;
  readonly text: (result: ForwardResult) => string;
  /** The matrices of the step: three if it has q, k and v, else one. */
  readonly parts: readonly Part[];
  /** Names of the axes of the trace's shape. */
  readonly axes: string;
  /** The scene of the story about this step. */
  readonly scene?: string;
}

const letters = ['q', 'k', 'v'] as const;
const always = (text: string) => () => text;

/** "√16 = 4". */
export const rootOf = (width: number): string => `√${width} = ${formatRoot(width)}`;

export const steps: readonly Step[] = [
  {
    id: 'x',
    title: 'Embed the words',
    symbol: 'x',
    text: ({ given, embedDim }) =>
      given
        ? `Each token is a row of ${embedDim} numbers: the state h before layer ${given.layer + 1}, after the layer’s norm.`
        : 'Each word becomes a row of 64 numbers: codes for its position, the word itself and its first letter, and traits of its spelling.',
    parts: [{ label: 'x', trace: 'x', formula: 'x' }],
    axes: 'batch, tokens, features',
  },
  {
    id: 'project',
    title: 'Make queries, keys and values',
    symbol: 'q, k, v',
    text: always(
      'Three matrices turn each row into a query (what the word looks for), a key (what it can be found by) and a value (what it hands over).',
    ),
    parts: letters.map((name) => ({ label: name, trace: name, formula: name })),
    axes: 'batch, tokens, heads · d_head',
  },
  {
    id: 'split',
    title: 'Split into heads',
    symbol: 'split',
    text: ({ headDim, given }) =>
      `Each head gets ${headDim} columns of q, k and v and works on its own from here. x itself is never split, and no number moves.` +
      (given?.rope ? ' RoPE turns each query and key by its position.' : ''),
    parts: letters.map((name) => ({ label: name, trace: `${name}Heads`, formula: 'split' })),
    axes: 'batch, heads, tokens, d_head',
    scene: 'split',
  },
  {
    id: 'scores',
    title: 'Score every pair',
    symbol: 'q · k',
    text: always('Multiply a query and a key column by column, and add up. The sum is large where the two match.'),
    parts: [{ label: 'scores', trace: 'scores', formula: 'scores' }],
    axes: 'batch, heads, queries, keys',
    scene: 'score',
  },
  {
    id: 'scale',
    title: 'Scale',
    symbol: '÷ √d',
    text: ({ bend, headDim, embedDim }) =>
      ({
        head: `Longer vectors give larger dot products. Dividing by ${rootOf(headDim)} undoes that.`,
        model: `Longer vectors give larger dot products. Here they are divided by ${rootOf(embedDim)}, the width of all heads: too much for one head.`,
        none: 'The scores are not divided, so the largest ones will take nearly all the weight.',
      })[bend.divisor],
    parts: [{ label: 'scaled scores', trace: 'scaledScores', formula: 'scale' }],
    axes: 'batch, heads, queries, keys',
    scene: 'temperature',
  },
  {
    id: 'mask',
    title: 'Mask',
    symbol: 'mask',
    text: ({ causal, bend }) => {
      if (causal) return 'Causal is on: a word sees itself and earlier words. The scores of later words become −∞.';
      if (bend.window >= 0) return 'A window is set: the scores of words further away become −∞.';
      return 'Nothing is hidden at the moment, so this step changes nothing. Switch on Causal to hide later words.';
    },
    parts: [{ label: 'masked scores', trace: 'maskedScores', formula: 'mask' }],
    axes: 'batch, heads, queries, keys',
    scene: 'mask',
  },
  {
    id: 'softmax',
    title: 'Softmax',
    symbol: 'softmax',
    text: always('Softmax turns each row of scores into weights: none is negative, and they add up to 1.'),
    parts: [{ label: 'weights', trace: 'weights', formula: 'softmax' }],
    axes: 'batch, heads, queries, keys',
  },
  {
    id: 'values',
    title: 'Mix the values',
    symbol: 'w · v',
    text: always('Each row becomes a mixture of the words’ values. With nearly all the weight on one word, it looks just like that word’s value.'),
    parts: [{ label: 'head output', trace: 'headsOut', formula: 'values' }],
    axes: 'batch, heads, tokens, d_head',
  },
  {
    id: 'merge',
    title: 'Put the heads side by side',
    symbol: 'concat',
    text: ({ headDim }) =>
      `Columns 1 to ${headDim} come from head 1, the next ${headDim} from head 2, and so on. Each stripe of ${headDim} is what one head found.`,
    parts: [{ label: 'merged', trace: 'merged', formula: 'merge' }],
    axes: 'batch, tokens, heads · d_head',
  },
  {
    id: 'output',
    title: 'Project the output',
    symbol: 'W_O',
    text: ({ bend }) =>
      bend.withoutOutput
        ? 'W_O is left out, so the merged heads are the output.'
        : 'W_O mixes what the heads found into one row per word, in the layout of x, where a next layer would read it.',
    parts: [{ label: 'output', trace: 'output', formula: 'output' }],
    axes: 'batch, tokens, features',
  },
];

export const stepOf = (id: StepId): Step => steps.find((step) => step.id === id)!;
