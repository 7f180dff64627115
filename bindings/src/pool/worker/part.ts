// One part of a call of attention(), for the workers of a pool. The core plans the part like the whole call, so that
// the joined parts are bit-identical to mh.attention().

import { attentionInputs, attentionNames, attentionReturns } from '../../attention/attention.js';
import { readCapture } from '../../attention/capture.js';
import { attentionOptions } from '../../attention/options.js';
import { outputShapes } from '../../attention/outputs.js';
import * as wire from '../../generated/wire.js';
import { bytesPerElement } from '../../runtime/memory.js';
import { call, type Operands, type Runtime } from '../../runtime/operands.js';
import { checkChoice, checkCount, checkNames, readOptions } from '../../runtime/options.js';
import type { ReadTensor } from '../../runtime/read_tensor.js';
import { floatDTypes } from '../../runtime/tensor.js';
import type { TypedArray } from '../../runtime/typed_arrays.js';
import type { AttentionOptions, AttentionReturn, DType, FloatDType, FloatTensorLike, Shape } from '../../types/index.js';
import type { Operand } from '../../types/wire.js';
import { resultRuns } from '../shared/parts.js';
import type { OutputSpec, PartCall, Place } from '../shared/protocol.js';
import { callUncopied, nowhere, operandAt } from '../shared/uncopied.js';

/** The tensors of a call that all parts need. */
export interface CallTensors {
  readonly q: ReadTensor<FloatDType>;
  readonly k: ReadTensor<FloatDType>;
  readonly v: ReadTensor<FloatDType>;
  readonly mask?: ReadTensor<'bool'>;
  readonly bias?: ReadTensor<'f32'>;
}

/** A checked call, and the core's plan to divide it. */
export interface DividedCall extends CallTensors {
  readonly parts: wire.AttentionParts;
  /** All arrays that the workers read, by argument: the tensors above and the arrays in the options. */
  readonly arrays: ReadonlyMap<string, () => TypedArray>;
  /** True if it is one sequence of a call of attentionVarlen(). */
  readonly packed: boolean;
  /** Outputs in the core's order: `out`, then the results named in `return`, then captures. */
  readonly outputs: readonly (OutputSpec & { readonly name: string; readonly shape: Shape })[];
}

/**
 * Checks a call without copying the tensors. Throws the same errors as mh.attention().
 *
 * @param packed true if the tensors, with a batch of one, are one sequence of an attentionVarlen() call
 */
export function divideAttention(
  runtime: Runtime,
  q: FloatTensorLike,
  k: FloatTensorLike,
  v: FloatTensorLike,
  given: AttentionOptions,
  packed = false,
): DividedCall {
  const options = readOptions(given, attentionNames, 'attention');
  return callUncopied(runtime, (operands) => {
    const { query, key, value, extents, valueDim } = attentionInputs(operands, q, k, v);
    const masking = attentionOptions(options, operands, extents);
    const shapes = outputShapes(extents, valueDim);
    const wanted = checkNames(options.return ?? [], attentionReturns, 'return');
    const outDtype = options.outDtype === undefined ? 'f32' : checkChoice(options.outDtype, floatDTypes, 'outDtype');
    const ifWanted = <D extends DType>(name: AttentionReturn, dtype: D, shape: Shape) =>
      wanted.includes(name) ? operandAt(nowhere, dtype, shape) : undefined;
    const record: wire.AttentionOutputs = {
      out: operandAt(nowhere, outDtype, shapes.out),
      lse: ifWanted('lse', 'f32', shapes.lse),
      weights: ifWanted('weights', 'f32', shapes.scores),
      dropoutMask: ifWanted('dropoutMask', 'bool', shapes.scores),
    };
    const captures = capturesOf(options.capture, shapes.scores, operands);
    const { args } = runtime;
    for (const { record: capture, shape } of captures) {
      wire.pushCapture(args, { ...capture, out: operandAt(nowhere, 'f32', shape) });
      operands.run((raw) => raw.pushCapture());
    }
    wire.attention(args, query, key, value, masking, record);
    operands.run((raw) => raw.divideAttention(packed));
    const parts = wire.readAttentionParts(args.results());

    const named = (['out', 'lse', 'weights', 'dropoutMask'] as const).flatMap((name) => {
      const operand = record[name];
      if (operand === undefined) return [];
      const { dtype, shape } = operand;
      const width = name === 'lse' ? 1 : (shape[3] as number);
      return [{ name, dtype, shape, width, capture: undefined }];
    });
    const captured = captures.map(({ shape, heads, record: { firstRow } }) => ({
      ...{ name: 'capture', dtype: 'f32' as const, shape, width: extents.keys },
      capture: { heads, firstRow, rows: shape[2] as number },
    }));
    const tensors = operands.tensors() as unknown as CallTensors;
    return { parts, packed, ...tensors, arrays: operands.arrays, outputs: [...named, ...captured] };
  });
}

function capturesOf(captures: AttentionOptions['capture'], scores: Shape, operands: Operands) {
  if (captures === undefined) return [];
  return readCapture(captures, scores, operands);
}

/** A view of bytes in this instance's memory, or in a buffer that was sent. */
const bytesAt = (buffer: ArrayBufferLike, offset: number, length: number): Uint8Array => new Uint8Array(buffer as ArrayBuffer, offset, length);

/** Computes one part in this worker's instance. The results replace the operands in `taskBuffer`. */
export function runPart(runtime: Runtime, part: PartCall, taskBuffer: ArrayBufferLike): void {
  const { heap, args } = runtime;
  const sent = ({ buffer, offset, bytes }: Place): Uint8Array => bytesAt(buffer ?? taskBuffer, offset, bytes);
  call(runtime, (operands) => {
    const copied = <D extends DType>(name: 'q' | 'k' | 'v', dtype: D): Operand<D> => {
      const { shape, place } = part[name];
      const { address } = operands.temporary(place.bytes, name);
      if (address !== 0) bytesAt(heap.buffer, address, place.bytes).set(sent(place));
      return operandAt(address, dtype, shape);
    };
    const [query, key, value] = [copied('q', part.qDType), copied('k', part.kDType), copied('v', part.kDType)];
    const [batch = 0, heads = 0, queries = 0, width = 0] = query.shape;
    const keys = key.shape[2] ?? 0;
    const { mask, bias } = part;
    const options = {
      ...part.options,
      mask: mask && { shape: mask.shape, data: sent(mask.place) },
      bias: bias && { shape: bias.shape, data: floatsOf(sent(bias.place)) },
    };
    const masking = attentionOptions(options, operands, { batch, heads, queries, keys, width });

    const group = heads / (key.shape[1] as number);
    const [firstRow, endRow] = [part.firstHead * group * queries, part.endHead * group * queries];
    const outputs = part.outputs.map((output) => {
      const { capture } = output;
      const rows = capture === undefined ? endRow - firstRow : batch * (capture.heads?.length ?? heads) * capture.rows;
      const { address } = operands.temporary(rows * output.width * bytesPerElement(output.dtype), 'out');
      return { ...output, address };
    });
    const result = <D extends DType>(name: string, dtype: D): Operand<D> | undefined => {
      const output = outputs.find((each) => each.name === name);
      return output && operandAt(output.address, dtype, output.shape);
    };
    const out = outputs[0] as (typeof outputs)[number];
    const record: wire.AttentionOutputs = {
      out: operandAt(out.address, out.dtype as FloatDType, out.shape),
      lse: result('lse', 'f32'),
      weights: result('weights', 'f32'),
      dropoutMask: result('dropoutMask', 'bool'),
    };
    const captures = outputs.filter(({ capture }) => capture !== undefined);
    const read = capturesOf(part.options.capture, [batch, heads, queries, keys], operands);
    for (const range of part.ranges) {
      read.forEach(({ record: capture, shape }, index) => {
        const { address } = captures[index] as (typeof outputs)[number];
        wire.pushCapture(args, { ...capture, out: operandAt(address, 'f32', shape) });
        operands.run((raw) => raw.pushCapture());
      });
      wire.attentionPart(args, query, key, value, masking, record, {
        firstInMemory: checkCount(part.firstHead, 'firstInMemory', 0),
        firstHead: checkCount(range.firstHead, 'firstHead', 0),
        endHead: checkCount(range.endHead, 'endHead', 0),
        firstBlock: checkCount(range.firstBlock, 'firstBlock', 0),
        endBlock: checkCount(range.endBlock, 'endBlock', 0),
        packed: part.packed,
      });
      operands.run((raw) => raw.attentionPart());
    }
    const { sharedOut } = part;
    for (const { index, row, rowBytes, bytes, at } of resultRuns(part)) {
      if (bytes === 0) continue;
      const output = outputs[index] as (typeof outputs)[number];
      const first = output.capture === undefined ? firstRow : 0;
      const from = bytesAt(heap.buffer, output.address + (row - first) * rowBytes, bytes);
      if (at !== undefined) bytesAt(taskBuffer, at, bytes).set(from);
      else if (sharedOut?.buffer) bytesAt(sharedOut.buffer, sharedOut.offset + row * rowBytes, bytes).set(from);
    }
  });
}

const floatsOf = (bytes: Uint8Array): Float32Array => new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
