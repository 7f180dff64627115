// mh.attention: reads the options and makes one call of the core.

import * as wire from '../generated/wire.js';
import { call, checkRank, type Operands, type Runtime } from '../runtime/operands.js';
import { readOptions } from '../runtime/options.js';
import { floatDTypes } from '../runtime/tensor.js';
import type { AttentionOptions, AttentionResult, AttentionReturn, Capture, FloatDType, FloatTensorLike } from '../types/index.js';
import { attentionOptions, attentionSchema, type CallExtents } from './options.js';
import { outputNames, outputShapes, prepareOutputs, pushCaptures } from './outputs.js';

export const attentionNames = { ...attentionSchema, ...outputNames };
export const attentionReturns: readonly AttentionReturn[] = ['lse', 'weights', 'dropoutMask'];

export function attention<R extends readonly AttentionReturn[], O extends FloatDType, C extends readonly Capture[]>(
  runtime: Runtime,
  q: FloatTensorLike,
  k: FloatTensorLike,
  v: FloatTensorLike,
  given: AttentionOptions<R, O, C> = {},
): AttentionResult<R, O, C> {
  const options = readOptions(given, attentionNames, 'attention');

  return call(runtime, (operands) => {
    const { query, key, value, extents, valueDim } = attentionInputs(operands, q, k, v);
    const masking = attentionOptions(options, operands, extents);

    const shapes = outputShapes(extents, valueDim);
    const outputs = prepareOutputs(options, attentionReturns, shapes, operands);
    pushCaptures(runtime, outputs, operands);
    wire.attention(runtime.args, query, key, value, masking, outputs.record);
    operands.run((raw) => raw._multihead_attention());
    return outputs.result as AttentionResult<R, O, C>;
  });
}

type Axes = Readonly<Record<'q' | 'k' | 'v', string>>;
const axes: Axes = { q: '(B, H_q, N_q, d_k)', k: '(B, H_kv, N_k, d_k)', v: '(B, H_kv, N_k, d_v)' };

/** Reads q, k and v and checks the number of axes. Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
export function readInputs(operands: Operands, q: FloatTensorLike, k: FloatTensorLike, v: FloatTensorLike, axes: Axes) {
  const query = operands.input(q, floatDTypes, 'q');
  const key = operands.input(k, floatDTypes, 'k');
  const value = operands.input(v, [key.dtype], 'v');
  checkRank(query, axes.q, 'q');
  checkRank(key, axes.k, 'k');
  checkRank(value, axes.v, 'v');
  return { query, key, value };
}

/** q, k and v of a call of attention(). Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
export function attentionInputs(operands: Operands, q: FloatTensorLike, k: FloatTensorLike, v: FloatTensorLike) {
  const { query, key, value } = readInputs(operands, q, k, v, axes);
  // Destructure by index, because iterators are slow on frozen arrays: see checkExtents().
  const { 0: batch = 0, 1: heads = 0, 2: queries = 0, 3: width = 0 } = query.shape;
  const { 2: keys = 0, 3: valueDim = 0 } = value.shape;
  const extents: CallExtents = { batch, heads, queries, keys, width };
  return { query, key, value, extents, valueDim };
}
