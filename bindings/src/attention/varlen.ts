// mh.attentionVarlen and its backward: packed sequences of different lengths.

import * as wire from '../generated/wire.js';
import type { Heap } from '../runtime/memory.js';
import { call, type Operands, type Runtime } from '../runtime/operands.js';
import { checkOptions, type Names, plain, readOptions, without } from '../runtime/options.js';
import type { Span } from '../types/wire.js';
import type {
  AttentionBackwardInputs,
  FloatDType,
  FloatTensorLike,
  VarlenBackwardOptions,
  VarlenBackwardResult,
  VarlenGradientName,
  VarlenOptions,
  VarlenResult,
} from '../types/index.js';
import { readInputs } from './attention.js';
import { gradientNames, inputNames, prepareGradients, readResults, withVectors } from './gradients.js';
import { alignedCausal, attentionOptions, attentionSchema, rotationNames } from './options.js';
import { outputNames, prepareOutputs } from './outputs.js';

const axes = { q: '(T_q, H_q, d_k)', k: '(T_k, H_kv, d_k)', v: '(T_k, H_kv, d_v)' };
const perSequence = 'packed sequences have no batch axis: call attention() for each sequence';
export const elsewhere = {
  mask: perSequence,
  bias: perSequence,
  capture: perSequence,
  kvLengths: 'the lengths are those of cuK',
};

const packedNames = { cuQ: plain, cuK: plain, ...without(attentionSchema, elsewhere) };
export const varlenNames = {
  ...packedNames,
  ...without(outputNames, elsewhere),
} satisfies Names<VarlenOptions>;
export const varlenBackwardNames = { ...packedNames, ...gradientNames } satisfies Names<VarlenBackwardOptions>;

export function attentionVarlen<R extends readonly 'lse'[], O extends FloatDType>(
  runtime: Runtime,
  q: FloatTensorLike,
  k: FloatTensorLike,
  v: FloatTensorLike,
  given: VarlenOptions<R, O>,
): VarlenResult<R, O> {
  const options = readOptions(given, varlenNames, 'attentionVarlen', elsewhere);
  checkRope(options);

  return call(runtime, (operands) => {
    const { query, key, value, cuQ, cuK, masking, extents } = readPacked(runtime, operands, { q, k, v }, options);
    const { queries, heads } = extents;
    const [, , valueDim = 0] = value.shape;

    const shapes = {
      out: [queries, heads, valueDim],
      lse: [heads, queries],
      scores: [],
    };
    const outputs = prepareOutputs(options, ['lse'], shapes, operands);
    wire.attentionVarlen(runtime.args, query, key, value, cuQ, cuK, masking, outputs.record);
    operands.run((raw) => raw.attentionVarlen());
    return outputs.result as VarlenResult<R, O>;
  });
}

/** The backward of attentionVarlen(). */
export function attentionVarlenBackward<const R extends readonly VarlenGradientName[] | undefined>(
  runtime: Runtime,
  givenInputs: AttentionBackwardInputs,
  given: VarlenBackwardOptions<R>,
): VarlenBackwardResult<R> {
  const inputs = readOptions(givenInputs, inputNames, 'inputs');
  const options = readOptions(given, varlenBackwardNames, 'attentionVarlenBackward', elsewhere);
  checkRope(options);

  return call(runtime, (operands) => {
    const packed = readPacked(runtime, operands, inputs, options);
    const { query, key, value, cuQ, cuK, masking, extents } = packed;
    const { results, dOut } = readResults(inputs, operands, options.checkLse);

    // There is no bias, so the core rejects dBias, and any shape will do here.
    const shapes = { dQ: query.shape, dK: key.shape, dV: value.shape, dBias: [1] };
    const gradients = prepareGradients(options, shapes, extents, operands);
    wire.attentionVarlenBackward(runtime.args, query, key, value, cuQ, cuK, masking, results, dOut, gradients.record);
    operands.run((raw) => raw.attentionVarlenBackward());
    return withVectors(gradients, runtime.heap) as VarlenBackwardResult<R>;
  });
}

/** Throws `E_OPTION`. */
export function checkRope({ rope }: Pick<VarlenOptions, 'rope'>): void {
  if (rope === undefined) return;
  const positions = 'positions start at 0 in each sequence: rotate() before the call for others';
  checkOptions(rope, rotationNames, 'rope', { qPositions: positions, kPositions: positions });
}

/** Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
export function readPacked(
  { heap }: Runtime,
  operands: Operands,
  { q, k, v }: Pick<AttentionBackwardInputs, 'q' | 'k' | 'v'>,
  options: Omit<VarlenOptions, 'return' | 'out' | 'outDtype'>,
) {
  const { query, key, value } = readInputs(operands, q, k, v, axes);
  const cuQ = operands.span(options.cuQ, 'i32', 'cuQ');
  const cuK = operands.span(options.cuK, 'i32', 'cuK');
  const [queries = 0, heads = 0, width = 0] = query.shape;
  const [keys = 0] = value.shape;
  const extents = { batch: 0, heads, queries, keys, width };
  // Sequences may differ in lengths even if there are as many queries as keys in all.
  const aligned = options.causal === true ? { ...options, causal: alignedCausal(options, sameNumbers(heap, cuQ, cuK)) } : options;
  const masking = attentionOptions(aligned, operands, extents);
  return { query, key, value, cuQ, cuK, masking, extents };
}

function sameNumbers(heap: Heap, a: Span<'i32'>, b: Span<'i32'>): boolean {
  const [ofA, ofB] = [a, b].map(({ address, length }) => heap.view('i32', address, length)) as [Int32Array, Int32Array];
  return ofA.length === ofB.length && ofA.every((value, index) => value === ofB[index]);
}
