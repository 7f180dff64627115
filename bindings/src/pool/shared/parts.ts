// Divides a call of attention() among workers, and computes which result rows each worker produces.

import type { AttentionParts } from '../../generated/wire.js';
import type { AttentionOptions } from '../../types/index.js';
import { bytesPerElement } from '../../runtime/memory.js';
import type { OutputSpec, PartCall, WorkRange } from './protocol.js';

/** Half-open range of indices. */
export type Range = readonly [first: number, end: number];

/** Consecutive rows of a result. */
type RowRun = readonly [first: number, count: number];

interface RowExtents {
  /** Query heads that share a key/value head. */
  readonly group: number;
  readonly queries: number;
  /**
   * Rows of a block. Rows of a key/value head are ordered query by query, with all query heads of the group side by
   * side.
   */
  readonly blockRows: number;
}

/**
 * Divides a call into at most `count` pieces of about equal work. Each piece is a few ranges of adjacent heads.
 *
 * @param work estimated work of each block of a head
 */
export function cutIntoPieces({ heads, blocks }: AttentionParts, work: readonly number[], count: number): WorkRange[][] {
  const runs = cutEvenly(heads * blocks, count, (job) => work[job % blocks] as number);
  return runs.map((run) =>
    tilesOf(run, blocks).map(({ rows: [firstHead, endHead], columns: [firstBlock, endBlock] }) => ({ firstHead, endHead, firstBlock, endBlock })),
  );
}

/** Divides the items 0 … items − 1 into at most `count` ranges of about equal work. */
export function cutEvenly(items: number, count: number, workOf: (item: number) => number = () => 1): Range[] {
  let total = 0;
  for (let item = 0; item < items; item += 1) total += workOf(item);
  const ranges: Range[] = [];
  let [first, done] = [0, 0];
  for (let item = 0; item < items; item += 1) {
    done += workOf(item);
    if (item + 1 < items && done < ((ranges.length + 1) * total) / count - total * 1e-9) continue;
    ranges.push([first, item + 1]);
    first = item + 1;
  }
  return ranges;
}

/** Covers a range of the places of a grid, which are counted row by row, by rectangles: ends of rows, and whole rows. */
export function tilesOf([first, end]: Range, width: number): { rows: Range; columns: Range }[] {
  const tiles: { rows: Range; columns: Range }[] = [];
  for (let at = first; at < end;) {
    const [row, column] = [Math.floor(at / width), at % width];
    const whole = column === 0 ? Math.floor((end - at) / width) : 0;
    const count = whole > 0 ? width : Math.min(width - column, end - at);
    tiles.push({ rows: [row, row + Math.max(whole, 1)], columns: [column, column + count] });
    at += Math.max(whole, 1) * count;
  }
  return tiles;
}

/**
 * Estimates the work of each block of a head: rows times (visible keys + 32 for the overhead of a row), plus 1 per
 * block.
 */
export function workOfBlocks(
  { blocks, blockRows }: AttentionParts,
  { group, queries }: { group: number; queries: number },
  keys: number,
  { causal, window }: AttentionOptions,
): number[] {
  const shift = offsetOf(causal, queries, keys);
  const left = window?.left ?? -1;
  return Array.from({ length: blocks }, (_, block) => {
    const rows = Math.min(blockRows, group * queries - block * blockRows);
    const middle = (block * blockRows + rows / 2) / group;
    let seen = shift === undefined ? keys : Math.min(keys, Math.max(0, middle + shift));
    if (left >= 0) seen = Math.min(seen, left + keys / 16);
    return rows * (seen + 32) + 1;
  });
}

function offsetOf(causal: AttentionOptions['causal'], queries: number, keys: number): number | undefined {
  if (causal === undefined || causal === false) return undefined;
  if (typeof causal === 'object') return causal.offset;
  // With `true` there are as many queries as keys.
  return causal === 'topLeft' ? 0 : keys - queries;
}

/** Row ranges of the ranges among all rows (B · H_q · N_q), in result order. */
function flatRows(ranges: readonly WorkRange[], { group, queries, blockRows }: RowExtents): RowRun[] {
  const runs: RowRun[] = [];
  for (const { firstHead, endHead, firstBlock, endBlock } of ranges) {
    const [first, end] = [firstBlock * blockRows, Math.min(endBlock * blockRows, group * queries)];
    if (first === 0 && end === group * queries) {
      runs.push([firstHead * group * queries, (endHead - firstHead) * group * queries]);
      continue;
    }
    for (let head = firstHead; head < endHead; head += 1) {
      for (let member = 0; member < group; member += 1) {
        const firstQuery = Math.ceil((first - member) / group);
        const endQuery = Math.ceil((end - member) / group);
        if (endQuery > firstQuery) runs.push([(head * group + member) * queries + firstQuery, endQuery - firstQuery]);
      }
    }
  }
  return runs;
}

/** Row ranges in one result: `runs`, or for a capture the captured rows among them. */
function rowsOfOutput({ capture }: OutputSpec, runs: readonly RowRun[], { heads, queries }: { heads: number; queries: number }): readonly RowRun[] {
  if (capture === undefined) return runs;
  const chosen = capture.heads;
  const placeOf = chosen && new Map(chosen.map((head, place) => [head, place]));
  const chosenHeads = chosen?.length ?? heads;
  const captured: RowRun[] = [];
  for (const [first, count] of runs) {
    for (let row = first; row < first + count;) {
      const flatHead = Math.floor(row / queries);
      const end = Math.min(first + count, (flatHead + 1) * queries);
      const head = flatHead % heads;
      const place = placeOf === undefined ? head : placeOf.get(head);
      if (place !== undefined) {
        const from = Math.max(row - flatHead * queries, capture.firstRow);
        const to = Math.min(end - flatHead * queries, capture.firstRow + capture.rows);
        const before = (Math.floor(flatHead / heads) * chosenHeads + place) * capture.rows;
        if (to > from) captured.push([before + from - capture.firstRow, to - from]);
      }
      row = end;
    }
  }
  return captured;
}

/** Consecutive rows of one result of a part. */
interface ResultRun {
  /** Index of the result in {@link PartCall.outputs}. */
  readonly index: number;
  /** The first row in the whole result. */
  readonly row: number;
  readonly rowBytes: number;
  /** Bytes of all rows. */
  readonly bytes: number;
  /** Offset in the task's buffer; undefined for rows of an `out` in the caller's shared memory. */
  readonly at: number | undefined;
}

/** The rows that a part computes, in the order of the task's buffer, where they lie without gaps. */
export function* resultRuns({ q, k, outputs, ranges, blockRows, sharedOut }: PartCall): Generator<ResultRun> {
  const [, heads = 0, queries = 0] = q.shape;
  const runs = flatRows(ranges, { group: heads / (k.shape[1] as number), queries, blockRows });
  let next = 0;
  for (const [index, output] of outputs.entries()) {
    const rowBytes = output.width * bytesPerElement(output.dtype);
    const isShared = output.name === 'out' && sharedOut !== undefined;
    for (const [row, rows] of rowsOfOutput(output, runs, { heads, queries })) {
      const bytes = rows * rowBytes;
      yield { index, row, rowBytes, bytes, at: isShared ? undefined : next };
      if (!isShared) next += bytes;
    }
  }
}
