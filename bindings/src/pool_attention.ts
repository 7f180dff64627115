// pool.attention(): divides a call, sends its parts, and joins their results.

import { divideAttention, resultBytes, type DividedCall } from './attention_part.js';
import { maskNames } from './attention_options.js';
import { MultiheadError } from './errors.js';
import { arrayOf, bytesPerElement, onJavaScriptHeap } from './memory.js';
import { checkTensorLike } from './operands.js';
import { readOptions } from './options.js';
import { packArguments, splitOptions } from './pool_arguments.js';
import type { PoolCore } from './pool_core.js';
import { cutIntoPieces, flatRows, rowsOfOutput, workOfBlocks } from './pool_parts.js';
import type { Box, PartCall, Place, SentTensor } from './pool_protocol.js';
import { elements, formatShape, sameShape } from './shape.js';
import { coreOf, describe, floatDTypes } from './tensor.js';
import { bufferOf, byteOffsetOf } from './typed_arrays.js';
import type { AttentionOptions, DType, FloatTensorLike, Shape } from './types.js';

const optionNames = [...maskNames, 'return', 'out', 'outDtype', 'capture'] as const;

/** Operations of a worker's share, above which it gets several pieces: so that aborting and progress are felt. */
const longPiece = 4e10;

interface Numbers {
  readonly dtype: DType;
  readonly shape: Shape;
  readonly data: Float32Array | Uint16Array | Uint8Array;
}

export async function poolAttention(
  core: PoolCore,
  q: FloatTensorLike,
  k: FloatTensorLike,
  v: FloatTensorLike,
  given?: object,
) {
  const { args, options: own } = splitOptions(given === undefined ? [] : [given]);
  return core.call('attention', own, async () => {
    const { out, ...options } = readOptions(args[0] as AttentionOptions | undefined, optionNames, 'attention');
    const runtime = await core.planner();
    const outDtype = options.outDtype ?? outDTypeOf(out);
    const call = divideAttention(runtime, q, k, v, outDtype === undefined ? options : { ...options, outDtype });
    const joined = new JoinedResults(call, out);
    const pieces = piecesOf(core, call, options);
    const input = (value: FloatTensorLike, name: string): Numbers => checkTensorLike(value, floatDTypes, name);
    const operands: Operands = {
      ...{ q: input(q, 'q'), k: input(k, 'k'), v: input(v, 'v') },
      mask: options.mask && checkTensorLike(options.mask, ['bool'], 'mask'),
      bias: options.bias && checkTensorLike(options.bias, ['f32'], 'bias'),
    };
    const { mask: _, bias: __, ...others } = options;
    // Copied now: views may lie in large buffers, which would be sent whole, and the caller may change them.
    const [compact] = packArguments([others]).args as [{ value: AttentionOptions }];
    const sent = { ...compact.value, ...(outDtype === undefined ? {} : { outDtype }) };
    let done = 0;
    await Promise.all(
      pieces.map(async (boxes) => {
        const { part, slot, transfer } = makePart(core, call, operands, sent, boxes, joined.sharedOut(core));
        const answer = await core.send('attention', { task: { kind: 'part', part, slot }, transfer }, own.signal);
        joined.receive(part, answer.slot as ArrayBufferLike);
        core.slots.give(answer.slot);
        own.progress?.((done += 1), pieces.length);
      }),
    );
    return joined.result;
  });
}

function outDTypeOf(out: unknown) {
  const dtype = (out as { dtype?: unknown } | undefined)?.dtype;
  return dtype === 'f16' || dtype === 'bf16' ? dtype : undefined;
}

function piecesOf(core: PoolCore, { parts, q, k }: DividedCall, options: AttentionOptions): Box[][] {
  const [, heads = 0, queries = 0] = q;
  const [, kvHeads = 0, keys = 0] = k;
  if (parts.heads === 0 || queries === 0) return [];
  const { workers } = core.crew;
  const { leastWork } = core.settings;
  const most = workers * Math.max(1, Math.min(8, Math.ceil(parts.operations / workers / longPiece)));
  const count = Math.max(1, Math.min(most, Math.floor(parts.operations / leastWork), parts.heads * parts.blocks));
  return cutIntoPieces(parts, workOfBlocks(parts, { group: heads / kvHeads, queries }, keys, options), count);
}

interface Operands {
  readonly q: Numbers;
  readonly k: Numbers;
  readonly v: Numbers;
  readonly mask: Numbers | undefined;
  readonly bias: Numbers | undefined;
}

const aligned = (bytes: number): number => Math.ceil(bytes / 64) * 64;
const asBytes = ({ data }: Numbers): Uint8Array => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
const isShared = ({ data }: Numbers): boolean =>
  typeof SharedArrayBuffer === 'function' && bufferOf(data) instanceof SharedArrayBuffer;

/** Copies what a piece reads into a slot. */
function makePart(
  core: PoolCore,
  call: DividedCall,
  operands: Operands,
  options: PartCall['options'],
  boxes: Box[],
  sharedOut: Place | undefined,
): { part: PartCall; slot: ArrayBufferLike; transfer: ArrayBuffer[] } {
  const [, heads = 0, queries = 0] = call.q;
  const group = heads / (call.k[1] as number);
  const firstHead = (boxes[0] as Box).firstHead;
  const endHead = (boxes.at(-1) as Box).endHead;
  const mayShare = core.settings.exchange === 'shared memory';

  let bytes = 0;
  const copies: { from: Uint8Array; offset: number }[] = [];
  const place = (numbers: Numbers, first: number, end: number): SentTensor => {
    const [firstByte, endByte] = [first * bytesPerElement(numbers.dtype), end * bytesPerElement(numbers.dtype)];
    const { shape, data } = numbers;
    const length = endByte - firstByte;
    if (mayShare && isShared(numbers)) {
      const offset = byteOffsetOf(data) + firstByte;
      return { shape, place: { shared: bufferOf(data) as SharedArrayBuffer, offset, bytes: length } };
    }
    const offset = bytes;
    copies.push({ from: asBytes(numbers).subarray(firstByte, endByte), offset });
    bytes = aligned(bytes + length);
    return { shape, place: { shared: undefined, offset, bytes: length } };
  };
  const headsOf = (numbers: Numbers, first: number, end: number): SentTensor => {
    const [, , rows = 0, width = 0] = numbers.shape;
    return place(numbers, first * rows * width, end * rows * width);
  };
  const whole = (numbers: Numbers | undefined): SentTensor | undefined =>
    numbers && place(numbers, 0, elements(numbers.shape));
  const part: PartCall = {
    q: headsOf(operands.q, firstHead * group, endHead * group),
    k: headsOf(operands.k, firstHead, endHead),
    v: headsOf(operands.v, firstHead, endHead),
    ...{ qDType: call.qDType, kDType: call.kDType },
    ...{ mask: whole(operands.mask), bias: whole(operands.bias) },
    ...{ options, firstHead, endHead, boxes, blockRows: call.parts.blockRows },
    outputs: call.outputs,
    sharedOut,
  };
  const extents = { heads, queries, group, blockRows: call.parts.blockRows };
  const slot = core.slots.take(Math.max(bytes, resultBytes(call.outputs, boxes, extents)));
  for (const { from, offset } of copies) new Uint8Array(slot, offset, from.length).set(from);
  return { part, slot, transfer: slot instanceof ArrayBuffer ? [slot] : [] };
}

/** The results of a whole call, which come in parts. */
class JoinedResults {
  readonly result: Record<string, unknown> = {};
  readonly #call: DividedCall;
  readonly #arrays: Uint8Array[];
  readonly #out: Numbers;

  /** `out` is the caller's. Throws `E_OPTION`, `E_SHAPE`, `E_MEMORY`. */
  constructor(call: DividedCall, out: unknown) {
    this.#call = call;
    const tensors = call.outputs.map(({ name, dtype, shape }): Numbers => {
      if (name === 'out' && out !== undefined) return checkOut(out, dtype, shape);
      const bytes = elements(shape) * bytesPerElement(dtype);
      const buffer = onJavaScriptHeap(bytes, name, () => new ArrayBuffer(bytes));
      return { data: new arrayOf[dtype](buffer), shape: [...shape], dtype };
    });
    const captures: Numbers[] = [];
    call.outputs.forEach(({ name }, index) => {
      const tensor = tensors[index] as Numbers;
      if (name === 'capture') captures.push(tensor);
      else this.result[name] = tensor;
    });
    if (captures.length > 0) this.result['captures'] = captures;
    this.#out = tensors[0] as Numbers;
    this.#arrays = tensors.map(asBytes);
  }

  /** Where workers write `out` themselves: shared memory of the caller's. */
  sharedOut(core: PoolCore): Place | undefined {
    const { data } = this.#out;
    if (core.settings.exchange !== 'shared memory' || !isShared(this.#out)) return undefined;
    return { shared: bufferOf(data) as SharedArrayBuffer, offset: byteOffsetOf(data), bytes: data.byteLength };
  }

  receive({ boxes, blockRows, sharedOut }: PartCall, slot: ArrayBufferLike): void {
    const [, heads = 0, queries = 0] = this.#call.q;
    const runs = flatRows(boxes, { group: heads / (this.#call.k[1] as number), queries, blockRows });
    let at = 0;
    this.#call.outputs.forEach((output, index) => {
      if (output.name === 'out' && sharedOut !== undefined) return;
      const rowBytes = output.width * bytesPerElement(output.dtype);
      const to = this.#arrays[index] as Uint8Array;
      for (const [row, rows] of rowsOfOutput(output, runs, { heads, queries })) {
        to.set(new Uint8Array(slot, at, rows * rowBytes), row * rowBytes);
        at += rows * rowBytes;
      }
    });
  }
}

function checkOut(out: unknown, dtype: DType, shape: Shape): Numbers {
  if (coreOf(out) !== undefined) {
    throw new MultiheadError('E_OPTION', {
      argument: 'out',
      expected: '{ data: typed array, shape }',
      got: 'a tensor, whose memory the workers of a pool cannot reach',
    });
  }
  if (typeof out !== 'object') {
    const expected = '{ data: typed array, shape }';
    throw new MultiheadError('E_OPTION', { argument: 'out', expected, got: describe(out) });
  }
  const given = checkTensorLike(out, [dtype], 'out');
  if (sameShape(given.shape, shape)) return { ...given, data: given.data };
  throw new MultiheadError('E_SHAPE', { argument: 'out', expected: formatShape(shape), got: formatShape(given.shape) });
}

