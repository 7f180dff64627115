// mh.scores: computes the scores a few rows at a time, so that no N_q × N_k matrix is stored.

import * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { bytesPerElement, onJavaScriptHeap } from '../runtime/memory.js';
import { call, checkRank, checkTensorLike, noSpan, type Operands, type Runtime } from '../runtime/operands.js';
import { checkCount, type Names, plain, readOptions, without } from '../runtime/options.js';
import { checkExtents, elements } from '../runtime/shape.js';
import { coreOf, floatDTypes, WasmTensor } from '../runtime/tensor.js';
import type { DType, FloatTensorLike, ScoreRows, ScoresOptions, Tensor } from '../types/index.js';
import type { Count, Span } from '../types/wire.js';
import { checkRows, headsSpan, stageCode } from './capture.js';
import { attentionOptions, attentionSchema } from './options.js';

const elsewhere = { dropout: 'scores are those before dropout' };
const optionNames = {
  ...without(attentionSchema, elsewhere),
  ...{ stage: plain, head: plain, heads: plain, rows: plain, chunk: plain },
} satisfies Names<ScoresOptions>;

export function scores(runtime: Runtime, q: FloatTensorLike, k: FloatTensorLike, given: ScoresOptions): Generator<ScoreRows, void, undefined> {
  const options = readOptions(given, optionNames, 'scores', elsewhere);
  const stage = stageCode(options.stage, 'stage');
  const { head, chunk = 64 } = options;
  checkCount(chunk, 'chunk');
  if (head !== undefined && options.heads !== undefined) throw optionError('head', 'either head or heads', 'both');
  return stream(runtime, q, k, options, stage, chunk);
}

/** A generator holds no inputs before the first next(). */
function* stream(
  runtime: Runtime,
  q: FloatTensorLike,
  k: FloatTensorLike,
  options: ScoresOptions,
  stage: wire.ScoreCapture['stage'],
  chunk: number,
): Generator<ScoreRows, void, undefined> {
  const held = new HeldInputs(runtime);
  try {
    const query = held.keep(q, floatDTypes, 'q');
    const key = held.keep(k, floatDTypes, 'k');
    checkRank(query, '(B, H_q, N_q, d_k)', 'q');
    checkRank(key, '(B, H_kv, N_k, d_k)', 'k');
    const mask = options.mask && held.keep(options.mask, ['bool'], 'mask');
    const bias = options.bias && held.keep(options.bias, ['f32'], 'bias');
    const options_ = { ...options, mask, bias };
    const queries = query.shape[2] ?? 0;
    const [first, count] = checkRows(options.rows, queries, 'rows');
    // Make one call even for 0 rows, because it checks the options.
    for (let done = 0; done === 0 || done < count; done += chunk) {
      const rows = Math.min(chunk, count - done);
      const read = { stage, firstRow: checkCount(first + done, 'rows', 0), rows };
      const chunkOfRows = readRows(runtime, query, key, options_, read);
      if (rows > 0) yield chunkOfRows;
    }
  } finally {
    held.dispose();
  }
}

function readRows(
  runtime: Runtime,
  q: FloatTensorLike,
  k: FloatTensorLike,
  options: ScoresOptions,
  { stage, firstRow, rows }: { stage: wire.ScoreCapture['stage']; firstRow: Count; rows: number },
): ScoreRows {
  return call(runtime, (operands) => {
    const query = operands.input(q, floatDTypes, 'q');
    const key = operands.input(k, floatDTypes, 'k');
    const [batch = 0, heads = 0, queries = 0, width = 0] = query.shape;
    const keys = key.shape[2] ?? 0;
    const masking = attentionOptions(options, operands, { batch, heads, queries, keys, width });
    const chosen = chosenHeads(options, heads, operands);

    const shape = [batch, chosen.length || heads, rows, keys];
    checkExtents(shape, 'scores');
    const size = elements(shape);
    const { address } = operands.temporary(size * bytesPerElement('f32'), 'scores');
    const { args, heap } = runtime;
    const out = { address, dtype: 'f32', shape } as const;
    wire.pushCapture(args, { stage, out, heads: chosen, firstRow });
    operands.run((raw) => raw.pushCapture());
    wire.attentionScores(args, query, key, masking);
    operands.run((raw) => raw.attentionScores());
    const bytes = size * bytesPerElement('f32');
    const data = onJavaScriptHeap(bytes, 'scores', () => heap.view('f32', address, size).slice());
    return { firstRow, rows, shape, data };
  });
}

function chosenHeads({ head, heads }: ScoresOptions, count: number, operands: Operands): Span<'i32'> {
  if (head !== undefined) return headsSpan([head], count, operands, 'head');
  return heads === undefined ? noSpan : headsSpan(heads, count, operands, 'heads');
}

/** Inputs for several calls: tensors of the caller, and copies of typed arrays. */
class HeldInputs {
  readonly #runtime: Runtime;
  readonly #copies: WasmTensor[] = [];

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  keep<D extends DType>(value: unknown, dtypes: readonly D[], argument: string): Tensor<D> {
    const { heap } = this.#runtime;
    const { data, dtype, shape } = checkTensorLike(value, dtypes, argument);
    if (coreOf(value)?.heap === heap) return value as Tensor<D>;
    const copy = WasmTensor.copy(heap, dtype, shape, data, argument);
    this.#copies.push(copy);
    return copy;
  }

  dispose(): void {
    for (const copy of this.#copies) copy.dispose();
  }
}
