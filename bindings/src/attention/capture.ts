// Captures of scores: checks stage, heads and rows, and chooses the tensor to write to.

import { scoreStages } from '../generated/tables.js';
import type * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { noSpan, type Operands } from '../runtime/operands.js';
import { checkChoice, checkCount, checkOptions, type Names, namesOf, plain } from '../runtime/options.js';
import { describe, type WasmTensor } from '../runtime/tensor.js';
import type { Capture, ScoreStage, Shape } from '../types/index.js';
import type { Count, Span } from '../types/wire.js';

const stages = namesOf(scoreStages) satisfies readonly ScoreStage[];

const captureNames = { stage: plain, heads: plain, rows: plain } satisfies Names<Capture>;

/** Converts a stage to its number in the core. Throws `E_OPTION`. */
export const stageCode = (stage: unknown, argument: string): wire.ScoreCapture['stage'] => scoreStages[checkChoice(stage, stages, argument)];

/** Returns the first row and the number of rows; by default all. Throws `E_OPTION` for rows beyond the last query. */
export function checkRows(rows: unknown, queries: number, argument: string): [Count, Count] {
  if (rows === undefined) return [0, checkCount(queries, argument, 0)];
  if (Array.isArray(rows) && rows.length === 2) {
    const first = checkCount(rows[0], `${argument}[0]`, 0);
    const count = checkCount(rows[1], `${argument}[1]`, 0);
    if (first + count <= queries) return [first, count];
  }
  throw optionError(argument, `[first, count] of the ${queries} queries`, Array.isArray(rows) ? `[${rows.join(', ')}]` : describe(rows));
}

/**
 * Converts a selection of `count` query heads. Throws `E_OPTION` for an empty list, a head that does not exist, and a
 * repeated head.
 */
export function headsSpan(heads: unknown, count: number, operands: Operands, argument: string): Span<'i32'> {
  if (!Array.isArray(heads) || heads.length === 0) {
    const got = Array.isArray(heads) ? '[]' : describe(heads);
    throw optionError(argument, 'an array of at least one query head; leave it out for all', got);
  }
  const chosen = new Set<number>();
  for (const head of heads as unknown[]) {
    if (!Number.isInteger(head) || (head as number) < 0 || (head as number) >= count) {
      throw optionError(argument, `query heads from 0 to ${count - 1}`, describe(head));
    }
    if (chosen.has(head as number)) throw optionError(argument, 'each head once', `${String(head)} twice`);
    chosen.add(head as number);
  }
  return operands.span(Int32Array.from(chosen), 'i32', argument);
}

/**
 * Checks the captures: gives for each its record without the output, its heads in the order of the result, undefined for all, and its
 * shape (B, heads, rows, N_k). `scores` is the shape (B, H_q, N_q, N_k) of all scores.
 */
export function readCapture(captures: unknown, scores: Shape, operands: Operands) {
  if (!Array.isArray(captures)) {
    throw optionError('capture', 'an array of { stage, heads?, rows? }', describe(captures));
  }
  const [batch = 0, heads = 0, queries = 0, keys = 0] = scores;
  // Array.from turns holes into undefined, which the checks then see.
  return Array.from(captures as Capture[]).map((capture, index) => {
    const argument = `capture[${index}]`;
    checkOptions(capture, captureNames, argument);
    const stage = stageCode(capture.stage, `${argument}.stage`);
    const [firstRow, rows] = checkRows(capture.rows, queries, `${argument}.rows`);
    const span = capture.heads === undefined ? noSpan : headsSpan(capture.heads, heads, operands, `${argument}.heads`);
    const shape = [batch, capture.heads?.length ?? heads, rows, keys];
    return { record: { stage, heads: span, firstRow }, heads: capture.heads, shape };
  });
}

/** Checks the captures and makes a tensor for each. `scores` is the shape (B, H_q, N_q, N_k) of all scores. */
export function captureRecords(captures: unknown, scores: Shape, operands: Operands): { records: wire.ScoreCapture[]; tensors: WasmTensor<'f32'>[] } {
  const read = readCapture(captures, scores, operands);
  const tensors = read.map(({ shape }, index) => operands.output(shape, 'f32', `capture[${index}]`));
  const records = read.map(({ record }, index) => ({
    ...record,
    out: operands.operandOf(tensors[index] as WasmTensor<'f32'>),
  }));
  return { records, tensors };
}
