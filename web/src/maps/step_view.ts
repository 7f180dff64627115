// The matrix of one step of the pass, with the labels, bands and marks that a map or table shows.

import { fitting, hides } from '../attention/bend.js';
import { blocks, blockSize } from '../attention/embedding.js';
import type { Matrix } from '../attention/matrix.js';
import { mostColumns, type ForwardResult, type Trace } from '../attention/messages.js';
import { patternIds } from '../attention/patterns.js';
import { tokenNames } from '../attention/tokens.js';
import type { Band, MatrixView } from './heat_map.js';

export const isPerHead = (matrix: Matrix): boolean => matrix.shape.length === 4;

const blockBands: readonly Band[] = blocks.map(({ name, start }) => ({
  label: name,
  start,
  end: start + blockSize,
  className: 'head-none',
}));

export function viewOf(result: ForwardResult, name: keyof Trace, head: number): MatrixView {
  const { tokens, causal, heads, bend, headDim } = result;
  const names = tokenNames(tokens);
  const matrix = result.trace[name];
  const width = matrix.shape.at(-1)!;
  const cols = Math.min(width, mostColumns);
  const size = tokens.length * width;
  const start = isPerHead(matrix) ? head * size : 0;
  const whole = matrix.data.subarray(start, start + size);
  const base = {
    rows: tokens.length,
    cols,
    data: cols < width ? firstColumns(whole, width, cols) : whole,
    rowLabels: names,
    scale: name === 'weights' ? 'weights' : 'signed',
  } as const;
  const mergedHeads = name === 'merged' || (name === 'output' && bend.withoutOutput);
  if (name === 'x' || (name === 'output' && !mergedHeads)) return result.given ? base : { ...base, bands: blockBands };
  if (name === 'q' || name === 'k' || name === 'v' || mergedHeads) {
    const bands = heads.slice(0, Math.ceil(cols / headDim)).map((id, h) => ({
      label: String(h + 1),
      start: h * headDim,
      end: Math.min(cols, (h + 1) * headDim),
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
    ...(name === 'weights' && { ...editedOf(result, head), muted: bend.muted.includes(head), headOf: () => patternIds.indexOf(heads[head]!) }),
    ...(masked && { hidden: (row: number, col: number) => hides(causal, bend.window, row, col) }),
  };
}

function firstColumns(data: Float32Array, width: number, cols: number): Float32Array {
  const rows = data.length / width;
  const cut = new Float32Array(rows * cols);
  for (let row = 0; row < rows; row += 1) cut.set(data.subarray(row * width, row * width + cols), row * cols);
  return cut;
}

function editedOf({ bend, causal, tokens, heads }: ForwardResult, head: number): Pick<MatrixView, 'edited'> {
  const edits = fitting(bend, causal, tokens.length, heads.length).filter((edit) => edit.head === head);
  if (edits.length === 0) return {};
  const places = new Set(edits.map(({ query, key }) => query * tokens.length + key));
  return { edited: (row, col) => places.has(row * tokens.length + col) };
}
