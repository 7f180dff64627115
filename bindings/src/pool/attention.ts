// pool.attention(): divides a call, sends its parts and joins the results.

import { attentionNames } from '../attention/attention.js';
import { optionError, shapeError } from '../runtime/errors.js';
import { arrayOf, bytesPerElement, onJavaScriptHeap } from '../runtime/memory.js';
import { sharesMemory } from '../runtime/operands.js';
import { readOptions } from '../runtime/options.js';
import { asBytes, isShared, type Numbers, ReadTensor } from '../runtime/read_tensor.js';
import { elements, formatShape, sameShape } from '../runtime/shape.js';
import { coreOf, describe } from '../runtime/tensor.js';
import { isArrayBuffer, overlap } from '../runtime/typed_arrays.js';
import type { AttentionOptions, DType, FloatTensorLike, Shape } from '../types/index.js';
import { packArguments, splitOptions } from './arguments.js';
import type { PoolCore } from './core.js';
import { type Piece, runAll } from './pieces.js';
import { cutIntoPieces, resultRuns, workOfBlocks } from './shared/parts.js';
import type { WorkRange, PartCall, Place, SentTensor } from './shared/protocol.js';
import { type TransferredOperands, withTransfer } from './transfer.js';
import { divideAttention, type DividedCall } from './worker/part.js';

/**
 * Operations of one worker's share above which the share is cut into several pieces, so that an abort and progress come
 * in time.
 */
const longPiece = 4e10;

type Tensors = readonly [q: FloatTensorLike, k: FloatTensorLike, v: FloatTensorLike];

export async function poolAttention(core: PoolCore, ...[q, k, v, given]: [...Tensors, object?]) {
  const { args, options: own } = splitOptions(given === undefined ? [] : [given], true);
  return core.call('attention', own, async () => {
    const { out, ...options } = readOptions(args[0] as AttentionOptions | undefined, attentionNames, 'attention');
    const planner = core.planner();
    const runtime = planner instanceof Promise ? await planner : planner;
    const outDtype = options.outDtype ?? outDTypeOf(out);
    const chosen = outDtype === undefined ? options : { ...options, outDtype };
    const call = divideAttention(runtime, q, k, v, chosen);
    const joined = new JoinedResults(call, out);
    const pieces = piecesOf(core, call, options, core.workers.count);
    const tensors = [call.q, call.k, call.v, call.mask, call.bias];
    return withTransfer(core.settings.exchange, own, tensors, async (transferred) => {
      const tasks = partTasks(core, call, chosen, pieces, joined, transferred);
      await runAll(tasks, own);
      return joined.result;
    });
  });
}

/**
 * Copies the operands of all pieces. A single piece gets the transferred buffers instead. Each returned function sends one
 * piece and receives its results.
 */
export function partTasks(
  core: PoolCore,
  call: DividedCall,
  options: AttentionOptions,
  pieces: readonly WorkRange[][],
  joined: JoinedResults,
  transferable?: TransferredOperands,
): Piece['run'][] {
  const operands = {
    ...{ q: call.q.numbers(), k: call.k.numbers(), v: call.v.numbers() },
    ...{ mask: call.mask?.numbers(), bias: call.bias?.numbers() },
  };
  const { mask: _, bias: __, ...others } = options;
  // Copy the options now: the caller may change them later, and a view into a large buffer would send the whole buffer.
  const [{ value }] = packArguments([others]).args as unknown as [{ value: AttentionOptions }];
  const transferred = pieces.length === 1 ? transferable : undefined;
  const inPlace = transferred?.buffers ?? [];
  return pieces.map((ranges) => {
    const read = { ...operands, inPlace };
    const { part, taskBuffer, transfer } = makePart(core, call, read, value, ranges, joined.sharedOut(core));
    const task = { kind: 'part', part, taskBuffer, transferred: inPlace } as const;
    return async (signal) => {
      const answer = await core.send('attention', { task, transfer, transferred }, signal);
      joined.receive(part, answer.taskBuffer as ArrayBufferLike);
      core.buffers.give(answer.taskBuffer);
    };
  });
}

function outDTypeOf(out: unknown) {
  const dtype = (out as { dtype?: unknown } | undefined)?.dtype;
  return dtype === 'f16' || dtype === 'bf16' ? dtype : undefined;
}

/** Cuts a call into pieces for `workers`, which may be fewer than the pool has. */
export function piecesOf(core: PoolCore, { parts, q, k }: DividedCall, options: AttentionOptions, workers: number): WorkRange[][] {
  const [, heads = 0, queries = 0] = q.shape;
  const [, numKvHeads = 0, keys = 0] = k.shape;
  if (parts.heads === 0 || queries === 0) return [];
  const most = workers * Math.max(1, Math.min(8, Math.ceil(parts.operations / workers / longPiece)));
  const count = Math.max(1, Math.min(most, Math.floor(parts.operations / core.settings.leastWork), parts.heads * parts.blocks));
  return cutIntoPieces(parts, workOfBlocks(parts, { group: heads / numKvHeads, queries }, keys, options), count);
}

interface Operands {
  readonly q: Numbers;
  readonly k: Numbers;
  readonly v: Numbers;
  readonly mask: Numbers | undefined;
  readonly bias: Numbers | undefined;
  /** Buffers that the task transfers; operands in them are not copied. */
  readonly inPlace: readonly ArrayBufferLike[];
}

const aligned = (bytes: number): number => Math.ceil(bytes / 64) * 64;
/** Copies the operands of a piece into the buffer of its task. */
function makePart(
  core: PoolCore,
  call: DividedCall,
  operands: Operands,
  options: PartCall['options'],
  ranges: WorkRange[],
  sharedOut: Place | undefined,
): { part: PartCall; taskBuffer: ArrayBufferLike; transfer: ArrayBuffer[] } {
  const group = (call.q.shape[1] as number) / (call.k.shape[1] as number);
  const firstHead = (ranges[0] as WorkRange).firstHead;
  const endHead = (ranges.at(-1) as WorkRange).endHead;
  const mayShare = core.settings.exchange === 'shared memory';

  let bytes = 0;
  const copies: { from: Uint8Array; offset: number }[] = [];
  const place = (numbers: Numbers, first: number, end: number): SentTensor => {
    const [firstByte, endByte] = [first * bytesPerElement(numbers.dtype), end * bytesPerElement(numbers.dtype)];
    const { shape, data } = numbers;
    const length = endByte - firstByte;
    if ((mayShare && isShared(numbers)) || operands.inPlace.includes(data.buffer)) {
      const place = { buffer: data.buffer, offset: data.byteOffset + firstByte, bytes: length };
      return { shape, place };
    }
    const offset = bytes;
    copies.push({ from: asBytes(numbers).subarray(firstByte, endByte), offset });
    bytes = aligned(bytes + length);
    return { shape, place: { buffer: undefined, offset, bytes: length } };
  };
  const headsOf = (numbers: Numbers, first: number, end: number): SentTensor => {
    const [, , rows = 0, width = 0] = numbers.shape;
    return place(numbers, first * rows * width, end * rows * width);
  };
  const whole = (numbers: Numbers | undefined): SentTensor | undefined => numbers && place(numbers, 0, elements(numbers.shape));
  const part: PartCall = {
    q: headsOf(operands.q, firstHead * group, endHead * group),
    k: headsOf(operands.k, firstHead, endHead),
    v: headsOf(operands.v, firstHead, endHead),
    ...{ qDType: call.q.dtype, kDType: call.k.dtype, packed: call.packed },
    ...{ mask: whole(operands.mask), bias: whole(operands.bias) },
    ...{ options, firstHead, endHead, ranges, blockRows: call.parts.blockRows },
    outputs: call.outputs,
    sharedOut,
  };
  let results = 0;
  for (const run of resultRuns(part)) if (run.at !== undefined) results += run.bytes;
  const taskBuffer = core.buffers.take(Math.max(bytes, results));
  for (const { from, offset } of copies) new Uint8Array(taskBuffer, offset, from.length).set(from);
  return { part, taskBuffer, transfer: isArrayBuffer(taskBuffer) ? [taskBuffer] : [] };
}

/** Collects the results of a whole call from its parts. */
export class JoinedResults {
  readonly result: Record<string, unknown> = {};
  /**
   * Returns the array of each result. Called for every write, because the caller may have detached the buffer of `out`.
   */
  readonly #places: (() => Numbers)[];

  /** `out` belongs to the caller; the result refers to it in a new object. Throws `E_OPTION`, `E_SHAPE`, `E_MEMORY`. */
  constructor(call: DividedCall, out?: unknown) {
    const captures: Numbers[] = [];
    this.#places = call.outputs.map(({ name, dtype, shape }) => {
      if (name === 'out' && out !== undefined) {
        const given = readOut(call, out, dtype, shape);
        this.result['out'] = { dtype, shape: given.shape, data: (out as Numbers).data };
        return () => given.numbers();
      }
      const bytes = elements(shape) * bytesPerElement(dtype);
      const buffer = onJavaScriptHeap(bytes, name, () => new ArrayBuffer(bytes));
      const tensor = { data: new arrayOf[dtype](buffer), shape: [...shape], dtype };
      if (name === 'capture') captures.push(tensor);
      else this.result[name] = tensor;
      return () => tensor;
    });
    if (captures.length > 0) this.result['captures'] = captures;
  }

  /** The caller's `out` if it is shared memory, which workers write directly. */
  sharedOut(core: PoolCore): Place | undefined {
    const out = (this.#places[0] as () => Numbers)();
    if (core.settings.exchange !== 'shared memory' || !isShared(out)) return undefined;
    const { buffer, byteOffset, byteLength } = out.data;
    return { buffer, offset: byteOffset, bytes: byteLength };
  }

  receive(part: PartCall, taskBuffer: ArrayBufferLike): void {
    const arrays = this.#places.map((place) => asBytes(place()));
    for (const { index, row, rowBytes, bytes, at } of resultRuns(part)) {
      if (at !== undefined) arrays[index]?.set(new Uint8Array(taskBuffer, at, bytes), row * rowBytes);
    }
  }
}

/**
 * Checks the caller's `out`. Throws `E_SHAPE`, or `E_OPTION`, for example if `out` overlaps an array that workers read.
 */
function readOut({ arrays }: DividedCall, out: unknown, dtype: DType, shape: Shape): ReadTensor {
  const expected = '{ data: typed array, shape }';
  if (coreOf(out) !== undefined) {
    const got = 'a tensor, whose memory the workers of a pool cannot reach';
    throw optionError('out', expected, got);
  }
  if (typeof out !== 'object') throw optionError('out', expected, describe(out));
  const given = new ReadTensor(out, [dtype], 'out');
  const { data } = given.numbers();
  for (const [name, numbers] of arrays) if (overlap(data, numbers())) throw sharesMemory('out', name);
  if (sameShape(given.shape, shape)) return given;
  throw shapeError('out', formatShape(shape), formatShape(given.shape));
}
