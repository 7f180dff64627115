// The thread: one number of each step, from x to the output, for a query, a key and a head. Each is an operand of the next one,
// and where a sum has many operands the thread follows the largest product.

import { hides } from '../../attention/bend.js';
import { largestIndex, rowOf } from '../../attention/matrix.js';
import type { ForwardResult, Trace } from '../../attention/messages.js';
import { tokenNames } from '../../attention/tokens.js';
import { formatNumber as f } from '../../base/format.js';
import type { Cell } from '../../maps/map_grid.js';
import type { Selection } from '../../state/app.js';
import { divisorOf } from './explain.js';

export interface Thread {
  readonly query: number;
  readonly key: number;
  readonly head: number;
  /** Column of x with the largest product in column `column` of the head's query. */
  readonly feature: number;
  /** Column of the head's query and key with the largest product in the score. */
  readonly column: number;
  /** Column of the head's value of the key with the largest absolute value. */
  readonly handed: number;
  /** Column of the output. Column `handed` of the head adds more to it than to any other. */
  readonly out: number;
}

/** The index from 0 to `count` − 1 at which the value is farthest from 0. */
function farthest(count: number, valueAt: (index: number) => number): number {
  let best = 0;
  for (let i = 1; i < count; i += 1) if (Math.abs(valueAt(i)) > Math.abs(valueAt(best))) best = i;
  return best;
}

/** Without a key, the thread takes the key with the largest weight. */
export function threadOf({ trace, weights, heads, headDim, embedDim, bend }: ForwardResult, { query, key, head }: Selection): Thread {
  const to = key ?? largestIndex(rowOf(trace.weights, head, query));
  const [q, k, v] = [rowOf(trace.qHeads, head, query), rowOf(trace.kHeads, head, to), rowOf(trace.vHeads, head, to)];
  const column = farthest(headDim, (c) => q[c]! * k[c]!);
  const x = rowOf(trace.x, 0, query);
  const handed = farthest(headDim, (c) => v[c]!);
  const wide = heads.length * headDim;
  const [asked, mixed] = [head * headDim + column, head * headDim + handed];
  return {
    ...{ query, key: to, head, column, handed },
    feature: farthest(embedDim, (c) => x[c]! * weights.qProj[asked * embedDim + c]!),
    out: bend.withoutOutput ? mixed : farthest(embedDim, (c) => weights.outProj[c * wide + mixed]!),
  };
}

/** The cell of the thread in the matrix of a step; `columns` is the head's width. */
export function cellOf({ query, key, head, feature, column, handed, out }: Thread, name: keyof Trace, columns: number): Cell {
  const row = ['k', 'v', 'kHeads', 'vHeads'].includes(name) ? key : query;
  const first = head * columns;
  const columnsOf: { readonly [name in keyof Trace]?: number } = {
    x: feature,
    ...{ q: first + column, k: first + column, v: first + handed },
    ...{ qHeads: column, kHeads: column, vHeads: handed, headsOut: handed },
    ...{ merged: first + handed, output: out },
  };
  return { row, col: columnsOf[name] ?? key };
}

export const numberAt = ({ trace }: ForwardResult, name: keyof Trace, head: number, { row, col }: Cell): number =>
  rowOf(trace[name], trace[name].shape.length === 4 ? head : 0, row)[col]!;

/** Says how the number of the thread goes on to the next step. */
export function goesOn(result: ForwardResult, name: keyof Trace, thread: Thread): string {
  const { trace, tokens, weights, heads, headDim, embedDim, causal, bend, given } = result;
  const { query, key, head, feature, column, handed, out } = thread;
  const names = tokenNames(tokens);
  const [wide, first] = [heads.length * headDim, head * headDim];
  switch (name) {
    case 'x':
      return `times ${f(weights.qProj[(first + column) * embedDim + feature]!)} in W_Q. No product is larger in column ${first + column + 1} of the query.`;
    case 'q':
    case 'k':
    case 'v': {
      const to = (name === 'v' ? handed : column) + 1;
      const turned = given?.rope && name !== 'v' ? ', turned by its position' : '';
      return `head ${head + 1} reads it as its column ${to}${turned}.`;
    }
    case 'qHeads':
      return `times ${f(rowOf(trace.kHeads, head, key)[column]!)}, column ${column + 1} of the key of ${names[key]}. No product of the score is larger.`;
    case 'kHeads':
      return `times ${f(rowOf(trace.qHeads, head, query)[column]!)}, column ${column + 1} of the query of ${names[query]}.`;
    case 'vHeads':
      return `it waits for step 8, where a weight of ${f(rowOf(trace.weights, head, query)[key]!)} multiplies it.`;
    case 'scores':
      return `divided by ${divisorOf(result).words}.`;
    case 'scaledScores':
      return hides(causal, bend.window, query, key) ? 'the mask hides it.' : 'the mask lets it pass.';
    case 'maskedScores':
      return 'e to the power of it, as a share of the sum over the row.';
    case 'weights':
      return `times ${f(rowOf(trace.vHeads, head, key)[handed]!)}, column ${handed + 1} of the value of ${names[key]}.`;
    case 'headsOut':
      return bend.muted.includes(head)
        ? `head ${head + 1} is muted, so it becomes 0.`
        : `it stands beside the other heads, in column ${first + handed + 1} of ${wide}.`;
    case 'merged':
      return bend.withoutOutput
        ? 'it is the output, because W_O is left out.'
        : `times ${f(weights.outProj[out * wide + first + handed]!)} in W_O. It adds most to column ${out + 1} of the output.`;
    default:
      return `it is one of the ${embedDim} numbers that ${names[query]} carries on.`;
  }
}
