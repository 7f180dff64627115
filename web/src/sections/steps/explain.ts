// Explains the number in a cell: the operation that made it, and its inputs from the step before.

import { hides } from '../../attention/bend.js';
import { featureName } from '../../attention/embedding.js';
import { type Matrix, rowOf } from '../../attention/matrix.js';
import type { ForwardResult, Trace } from '../../attention/messages.js';
import { tokenNames } from '../../attention/tokens.js';
import { formatNumber as f, wholePercents } from '../../base/format.js';
import type { Cell } from '../../maps/map_grid.js';
import { rootOf } from './steps.js';

export interface Place extends Cell {
  readonly head: number;
}

/** Two vectors whose elementwise products sum to the number. */
export interface Product {
  readonly left: { readonly label: string; readonly data: Float32Array };
  readonly right: { readonly label: string; readonly data: Float32Array };
}

export interface Terms {
  readonly titles: readonly string[];
  readonly rows: readonly (readonly string[])[];
  readonly total: string;
}

/** A word with a bar whose length is `share`, from 0 to 1. */
export interface Bar {
  readonly key: number;
  readonly label: string;
  readonly share: number;
  readonly note: string;
  /** Length of the bar, from 0 to 1, at the start of its movement; by default 0. It ends at `share`. */
  readonly start?: number;
  /** The word's value times its weight, (d_head). */
  readonly part?: Float32Array;
}

/** The weights of a row, which share one bar of length 1. */
export interface Whole {
  readonly weights: Float32Array;
  readonly names: readonly string[];
  readonly head: string;
  readonly chosen: number;
}

export interface Explanation {
  /** The product whose left operand is the number of the step before. It begins the sentence `why`. */
  readonly first?: string;
  /** One or two sentences. rich() shows the Q of W_Q as a subscript and the x of e^{x} as a power. */
  readonly why: string;
  readonly product?: Product;
  /** Column of the product `first`. */
  readonly lit?: number;
  readonly whole?: Whole;
  readonly bars?: readonly Bar[];
  /** The sum over the `part` of all words, (d_head). */
  readonly sum?: Float32Array;
  readonly terms?: () => Terms;
}

const sumOf = (values: ArrayLike<number>): number => Array.from(values).reduce((a, b) => a + b, 0);
const totalOf = (values: Float32Array): string => f(sumOf(values), 4);
const signed = (value: number, digits = 2) => (value < 0 ? `(${f(value, digits)})` : f(value, digits));

/**
 * The three largest terms of a dot product, the term of column `lead` first, and the number of others that are not 0:
 * "0.97·1.00 + 0.03·(−1.00) + 2 more". A term that would be printed as 0.000 is among the others.
 */
function largestTerms({ left, right }: Product, lead?: number): Pick<Explanation, 'first' | 'why' | 'lit'> {
  const products = Array.from(left.data, (value, i) => ({ a: value, b: right.data[i]!, i }))
    .filter(({ a, b }) => a * b !== 0)
    .sort((p, q) => Number(q.i === lead) - Number(p.i === lead) || Math.abs(q.a * q.b) - Math.abs(p.a * p.b));
  const large = products.filter(({ a, b }) => Math.abs(a * b) >= 5e-4).slice(0, 3);
  const [first, ...others] = large.map(({ a, b }) => `${signed(a)}·${signed(b)}`);
  if (first === undefined) return { why: products.length === 0 ? 'Every product is 0.' : 'Every product is nearly 0.' };
  const more = products.length - large.length;
  const rest = [...others, ...(more > 0 ? [`${more} more`] : [])];
  return { first, why: rest.map((term) => ` + ${term}`).join(''), lit: large[0]!.i };
}

function termsOf({ left, right }: Product): Terms {
  const products = left.data.map((value, i) => value * right.data[i]!);
  return {
    titles: ['column', left.label, right.label, 'product'],
    rows: Array.from(products, (product, i) => [String(i + 1), f(left.data[i]!, 4), f(right.data[i]!, 4), f(product, 4)]),
    total: totalOf(products),
  };
}

function dotProduct(product: Product, bias?: number, lead?: number): Explanation {
  const { why, ...sum } = largestTerms(product, lead);
  return {
    ...sum,
    why: why + (bias === undefined ? '' : `, and then the bias ${signed(bias, 3)} is added.`),
    product,
    terms: () => termsOf(product),
  };
}

/** `lead`: the column of the merged heads whose product begins the sum of an output; by default the column of the largest product. */
export function explain(result: ForwardResult, name: keyof Trace, place: Place, lead?: number): Explanation {
  const { row, col, head } = place;
  const { trace, tokens, heads, weights, bend, given, embedDim, headDim } = result;
  const names = tokenNames(tokens);
  const wide = heads.length * headDim;
  switch (name) {
    case 'x':
      return {
        why: `${given ? 'The layers below computed this number.' : `This feature is set by a rule: ${featureName(col)}.`} Column ${col + 1} of several words:`,
        bars: columnBars(trace.x, names, place),
      };
    case 'q':
    case 'k':
    case 'v':
      return dotProduct(
        {
          left: { label: `x of ${names[row]}`, data: rowOf(trace.x, 0, row) },
          right: { label: `W_${name.toUpperCase()}, row ${col + 1}`, data: weights[`${name}Proj`].subarray(col * embedDim, (col + 1) * embedDim) },
        },
        weights.inBias?.['qkv'.indexOf(name) * wide + col],
      );
    case 'qHeads':
    case 'kHeads':
    case 'vHeads':
      if (given?.rope && name !== 'vHeads') {
        return {
          why: `Column ${head * headDim + col + 1} of ${name[0]}, turned with another column of head ${head + 1} by an angle that grows with the word’s position (RoPE).`,
        };
      }
      return {
        why: `The same number as in column ${head * headDim + col + 1} of ${name[0]}: head ${head + 1} has columns ${head * headDim + 1} to ${(head + 1) * headDim}.`,
      };
    case 'scores':
      return dotProduct({
        left: { label: `query of ${names[row]}`, data: rowOf(trace.qHeads, head, row) },
        right: { label: `key of ${names[col]}`, data: rowOf(trace.kHeads, head, col) },
      });
    case 'scaledScores':
      return { why: scaling(result, place), bars: rowBars(result, place, 'scores', 'scaledScores') };
    case 'maskedScores':
      return { why: masking(result, place), bars: rowBars(result, place, 'scaledScores', 'maskedScores') };
    case 'weights':
      return softmax(result, place);
    case 'headsOut':
      return mixing(result, place);
    case 'merged': {
      const from = Math.floor(col / headDim);
      return {
        why: bend.muted.includes(from)
          ? `Head ${from + 1} is muted, so its columns are 0.`
          : `Head ${from + 1} wrote this number: it is column ${(col % headDim) + 1} of its output.`,
      };
    }
    case 'output':
      if (bend.withoutOutput) return { why: 'W_O is left out, so this is the number of the step before.' };
      return dotProduct(
        {
          left: { label: `merged ${names[row]}`, data: rowOf(trace.merged, 0, row) },
          right: { label: `W_O, row ${col + 1}`, data: weights.outProj.subarray(col * wide, (col + 1) * wide) },
        },
        weights.outBias?.[col],
        lead,
      );
  }
}

/** Divisor of the scores, in words and as a number. */
export function divisorOf({ bend, headDim, embedDim }: ForwardResult): { words: string; value: number } {
  const base = { head: Math.sqrt(headDim), model: Math.sqrt(embedDim), none: 1 }[bend.divisor];
  const words = { head: rootOf(headDim), model: rootOf(embedDim), none: '1' }[bend.divisor];
  if (bend.temperature === 1) return { words, value: base };
  return { words: `${words} and the temperature ${bend.temperature}`, value: base * bend.temperature };
}

/** A column of the word and of those with the largest numbers, on one scale. */
function columnBars(x: Matrix, names: readonly string[], { row, col }: Place): Bar[] {
  const numbers = names.map((_, token) => rowOf(x, 0, token)[col]!);
  const size = (token: number): number => Math.abs(numbers[token]!);
  const order = [...numbers.keys()].sort((a, b) => Number(b === row) - Number(a === row) || size(b) - size(a)).slice(0, mostBars);
  const most = Math.max(...order.map(size)) || 1;
  return order.sort((a, b) => a - b).map((key) => ({ key, label: names[key]!, share: size(key) / most, note: f(numbers[key]!) }));
}

/** The row's scores before and after a step, on one scale: a full bar is the largest score before. Negative scores have no bar. */
function rowBars(
  { trace, tokens }: ForwardResult,
  { row, head }: Place,
  before: 'scores' | 'scaledScores',
  after: 'scaledScores' | 'maskedScores',
): Bar[] {
  const names = tokenNames(tokens);
  const [from, to] = [rowOf(trace[before], head, row), rowOf(trace[after], head, row)];
  const most = Math.max(...from.map(Math.abs)) || 1;
  const largest = [...from.keys()].sort((a, b) => from[b]! - from[a]!).slice(0, mostBars);
  return largest
    .sort((a, b) => a - b)
    .map((key) => ({ key, label: names[key]!, share: to[key]! / most, start: from[key]! / most, note: f(to[key]!, 2) }));
}

function scaling(result: ForwardResult, { row, col, head }: Place): string {
  const { words } = divisorOf(result);
  return `${f(rowOf(result.trace.scores, head, row)[col]!)} divided by ${words}.`;
}

function masking(result: ForwardResult, { row, col }: Place): string {
  const { causal, bend, tokens } = result;
  const names = tokenNames(tokens);
  if (!hides(causal, bend.window, row, col)) return 'This word may be looked at, so its score stays.';
  const reason =
    causal && col > row ? `${names[col]} comes after ${names[row]}` : `${names[col]} is more than ${bend.window} words away from ${names[row]}`;
  return `${reason}, so it is hidden: its score becomes −∞, and its weight exactly 0.`;
}

function softmax(result: ForwardResult, { row, col, head }: Place): Explanation {
  const { causal, bend, tokens, trace } = result;
  const names = tokenNames(tokens);
  const scores = rowOf(trace.maskedScores, head, row);
  const weights = rowOf(trace.weights, head, row);
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const power = (key: number) => Math.exp(scores[key]! - most);
  const total = sumOf(Array.from(scores, (_, key) => power(key)));
  const least = scores.reduce((a, b) => (Number.isFinite(b) ? Math.min(a, b) : a), most);
  // In the order of the sentence, as in the bar that they share.
  const keys = barKeys(weights).sort((a, b) => a - b);
  const bars = keys.map((key) => ({
    key,
    label: names[key]!,
    share: power(key),
    note: f(power(key)),
    // Scores have no fixed range: a full bar is the largest of the row.
    start: Number.isFinite(scores[key]!) && most > least ? (scores[key]! - least) / (most - least) : 0,
  }));
  const whole = { weights, names, head: `head-${result.heads[head]}`, chosen: col };
  const terms = () => ({
    titles: ['key', 'score', 'e^{score − largest}', 'weight'],
    rows: Array.from(scores, (score, key) => [names[key]!, f(score), f(power(key), 4), f(weights[key]!, 4)]),
    total: totalOf(weights),
  });
  const edits = bend.edits.filter((edit) => edit.head === head && edit.query === row);
  if (hides(causal, bend.window, row, col)) return { why: 'Hidden by the mask, so the weight is exactly 0.', bars, whole, terms };
  if (edits.some(({ key }) => key === col)) return { why: 'You set this weight by hand.', bars, whole, terms };
  if (edits.length > 0) return { why: 'A weight of this row is set by hand; the others share the rest.', bars, whole, terms };
  const exponent = scores[col]! - most;
  const shown = exponent === 0 ? 'e⁰' : `e^{${f(exponent, 2)}}`;
  const why = `${shown} ÷ ${f(total)}. The row’s largest score, ${f(most, 2)}, is subtracted first; the result is the same.`;
  return { why, bars, whole, terms };
}

function mixing({ trace, tokens }: ForwardResult, { row, col, head }: Place): Explanation {
  const names = tokenNames(tokens);
  const weights = rowOf(trace.weights, head, row);
  const value = (key: number) => rowOf(trace.vHeads, head, key)[col]!;
  const bars = barKeys(weights, leastShown).map((key) => ({
    key,
    label: names[key]!,
    share: weights[key]!,
    note: `${f(weights[key]!, 2)} · ${signed(value(key))} = ${f(weights[key]! * value(key), 2)}`,
    part: rowOf(trace.vHeads, head, key).map((number) => number * weights[key]!),
  }));
  return {
    why: `Each word's value in column ${col + 1}, times its weight, added up.`,
    bars,
    sum: rowOf(trace.headsOut, head, row),
    terms: () => ({
      titles: ['word', 'weight', 'value', 'product'],
      rows: Array.from(weights, (weight, key) => [names[key]!, f(weight, 4), f(value(key), 4), f(weight * value(key), 4)]),
      total: totalOf(weights.map((weight, key) => weight * value(key))),
    }),
  };
}

/** Maximum number of bars; the list of all terms shows every key. */
export const mostBars = 6;

/** A smaller weight is printed as 0.00, and adds nothing to the mixture that could be seen. */
const leastShown = 0.005;

/** The keys with the largest weights, of at least `least`, the largest first. */
function barKeys(weights: Float32Array, least = 0): number[] {
  return [...weights.keys()]
    .filter((key) => weights[key]! >= least)
    .sort((a, b) => weights[b]! - weights[a]!)
    .slice(0, mostBars);
}

/**
 * Describes a token's output in words: the share of each word, which is its mean weight over the heads that are not
 * muted.
 */
export function carries({ trace, tokens, heads, bend }: ForwardResult, query: number): string {
  const names = tokenNames(tokens);
  const speaking = [...heads.keys()].filter((head) => !bend.muted.includes(head));
  if (speaking.length === 0) return `Every head is muted, so ${names[query]} is nothing.`;
  const shares = tokens.map((_, key) => {
    const weights = speaking.map((head) => trace.weights.data[(head * tokens.length + query) * tokens.length + key]!);
    return sumOf(weights) / speaking.length;
  });
  const order = [...shares.keys()].sort((a, b) => shares[b]! - shares[a]!);
  const shown = order.filter((key) => shares[key]! >= 0.05).slice(0, 5);
  if (shown.length === 0) shown.push(order[0]!);
  const rest = sumOf(shares.filter((_, key) => !shown.includes(key)));
  const percents = wholePercents([...shown.map((key) => shares[key]!), rest]);
  const list = shown.map((key, i) => `${percents[i]}\u00a0% ${names[key]}`);
  const others = percents.at(-1)! > 0 ? ` and ${percents.at(-1)}\u00a0% other words` : '';
  return `${names[query]} is ${list.join(', ')}${others}, averaged over the heads in use.`;
}
