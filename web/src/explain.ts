// Explains the number in a cell: how it is computed from the numbers of the step before.

import { embedDim, featureName } from './embedding.js';
import type { ForwardResult, Trace } from './messages.js';
import { formatNumber as f } from './parts/format.js';
import { headDim } from './patterns.js';

interface Place {
  readonly row: number;
  readonly col: number;
  readonly head: number;
}

/** The largest three terms of a dot product, and the number of others: "0.97·1.00 + 0.03·(−1.00) + 2 more". */
function products(a: ArrayLike<number>, b: ArrayLike<number>): string {
  const terms = Array.from(a, (value, i) => [value, b[i]!] as const)
    .filter(([left, right]) => Math.abs(left * right) >= 5e-4)
    .sort((p, q) => Math.abs(q[0] * q[1]) - Math.abs(p[0] * p[1]));
  if (terms.length === 0) return 'every product is 0';
  const factor = (value: number) => (value < 0 ? `(${f(value, 2)})` : f(value, 2));
  const shown = terms.slice(0, 3).map(([left, right]) => `${factor(left)}·${factor(right)}`);
  const more = terms.length - shown.length;
  return shown.join(' + ') + (more > 0 ? ` + ${more} more` : '');
}

function columnOf(data: Float32Array, cols: number, col: number): number[] {
  return Array.from({ length: data.length / cols }, (_, row) => data[row * cols + col]!);
}

export function explain(result: ForwardResult, name: keyof Trace, { row, col, head }: Place): string {
  const { trace, tokens, heads, weights } = result;
  const count = tokens.length;
  const wide = heads.length * headDim;
  const mapRow = (step: keyof Trace) =>
    trace[step].data.subarray((head * count + row) * count, (head * count + row + 1) * count);
  const headRow = (step: keyof Trace, at: number) =>
    trace[step].data.subarray((head * count + at) * headDim, (head * count + at + 1) * headDim);
  const projected = (w: Float32Array) =>
    products(
      trace.x.data.subarray(row * embedDim, (row + 1) * embedDim),
      w.subarray(col * embedDim, (col + 1) * embedDim),
    );

  switch (name) {
    case 'x':
      return featureName(col);
    case 'q':
      return `row ${row + 1} of x · row ${col + 1} of W_Q: ${projected(weights.qProj)}`;
    case 'k':
      return `row ${row + 1} of x · row ${col + 1} of W_K: ${projected(weights.kProj)}`;
    case 'v':
      return `row ${row + 1} of x · row ${col + 1} of W_V: ${projected(weights.vProj)}`;
    case 'qHeads':
    case 'kHeads':
    case 'vHeads':
      return `the same number as ${name[0]}, column ${head * headDim + col + 1} of ${wide}`;
    case 'scores':
      return products(headRow('qHeads', row), headRow('kHeads', col));
    case 'scaledScores':
      return `${f(mapRow('scores')[col]!)} ÷ √${headDim}`;
    case 'maskedScores':
      return result.causal && col > row
        ? `token ${col + 1} comes after token ${row + 1}: hidden`
        : 'visible: unchanged';
    case 'weights': {
      if (result.causal && col > row) return 'hidden: e^−∞ = 0';
      const scores = mapRow('maskedScores');
      const rowMax = scores.reduce((a, b) => Math.max(a, b), -Infinity);
      const total = scores.reduce((sum, score) => sum + Math.exp(score - rowMax), 0);
      return `e^(${f(scores[col]!, 2)} − ${f(rowMax, 2)}) ÷ ${f(total)}, where ${f(rowMax, 2)} is the row's largest score and ${f(total)} the sum of such powers over the row`;
    }
    case 'headsOut': {
      const values = trace.vHeads.data.subarray(head * count * headDim, (head + 1) * count * headDim);
      return products(mapRow('weights'), columnOf(values, headDim, col));
    }
    case 'merged':
      return `head ${Math.floor(col / headDim) + 1}, column ${(col % headDim) + 1}`;
    case 'output':
      return products(
        trace.merged.data.subarray(row * wide, (row + 1) * wide),
        weights.outProj.subarray(col * wide, (col + 1) * wide),
      );
  }
}
