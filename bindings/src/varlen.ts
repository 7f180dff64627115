// mh.attentionVarlen: packed sequences of different lengths.

import { readInputs } from './attention.js';
import { attentionOptions, rotationNames, sharedNames } from './attention_options.js';
import { call, type Runtime } from './operands.js';
import { checkOptions, readOptions } from './options.js';
import { prepareOutputs } from './outputs.js';
import type { FloatDType, FloatTensorLike, VarlenOptions, VarlenResult } from './types.js';
import * as wire from './wire.js';

const optionNames = [
  ...(['cuQ', 'cuK'] as const),
  ...sharedNames,
  ...(['qkNorm', 'rope', 'return', 'out', 'outDtype'] as const),
] as const satisfies readonly (keyof VarlenOptions)[];

const axes = { q: '(T_q, H_q, d_k)', k: '(T_k, H_kv, d_k)', v: '(T_k, H_kv, d_v)' };
const perSequence = 'packed sequences have no batch axis: call attention() for each sequence';
const elsewhere = {
  mask: perSequence,
  bias: perSequence,
  capture: perSequence,
  kvLengths: 'the lengths are those of cuK',
};

export function attentionVarlen<R extends readonly 'lse'[], O extends FloatDType>(
  runtime: Runtime,
  q: FloatTensorLike,
  k: FloatTensorLike,
  v: FloatTensorLike,
  given: VarlenOptions<R, O>,
): VarlenResult<R, O> {
  const options = readOptions(given, optionNames, 'attentionVarlen', elsewhere);
  if (options.rope !== undefined) {
    const positions = 'positions start at 0 in each sequence: rotate() before the call for others';
    const advice = { qPositions: positions, kPositions: positions };
    checkOptions(options.rope, rotationNames, 'rope', advice);
  }

  return call(runtime, (operands) => {
    const { query, key, value } = readInputs(operands, q, k, v, axes);
    const cuQ = operands.span(options.cuQ, 'i32', 'cuQ');
    const cuK = operands.span(options.cuK, 'i32', 'cuK');
    const [queries = 0, heads = 0, width = 0] = query.shape;
    const [keys = 0, , valueWidth = 0] = value.shape;
    const masking = attentionOptions(options, operands, { batch: 0, heads, queries, keys, width });

    const shapes = {
      out: [queries, heads, valueWidth],
      lse: [heads, queries],
      scores: [],
    };
    const outputs = prepareOutputs(options, ['lse'], shapes, operands);
    const { args, raw } = runtime;
    wire.attentionVarlen(args, query, key, value, cuQ, cuK, masking, outputs.record);
    operands.run(() => raw.attentionVarlen());
    return outputs.result as VarlenResult<R, O>;
  });
}
