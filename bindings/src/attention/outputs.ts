// The results of one call: a tensor for each requested output, and the core's record of them.

import * as wire from '../generated/wire.js';
import type { Operands, Runtime } from '../runtime/operands.js';
import { checkChoice, checkNames, type Names, plain } from '../runtime/options.js';
import { floatDTypes, isHalf } from '../runtime/tensor.js';
import type { AttentionReturn, FloatDType, OutputOptions, Shape, Tensor } from '../types/index.js';
import { captureRecords } from './capture.js';
import type { CallExtents } from './options.js';

/** The names in {@link OutputOptions}. */
export const outputNames = { return: plain, out: plain, outDtype: plain, capture: plain } satisfies Names<OutputOptions>;

export interface OutputShapes {
  readonly out: Shape;
  readonly lse: Shape;
  /** (B, H_q, N_q, N_k): the shape of weights, of a dropout mask, and of a capture of all heads and rows. */
  readonly scores: Shape;
}

export function outputShapes({ batch, heads, queries, keys }: CallExtents, valueDim: number): OutputShapes {
  return {
    out: [batch, heads, queries, valueDim],
    lse: [batch, heads, queries],
    scores: [batch, heads, queries, keys],
  };
}

interface Result {
  out: Tensor<FloatDType>;
  lse?: Tensor;
  weights?: Tensor;
  dropoutMask?: Tensor<'bool'>;
  captures?: Tensor[];
}

export interface Outputs {
  readonly result: Result;
  readonly record: wire.AttentionOutputs;
  readonly captures: readonly wire.ScoreCapture[];
}

/**
 * Makes the output tensors. Register all inputs with `operands` before this call. Throws `E_OPTION`, `E_SHAPE`,
 * `E_DISPOSED`, `E_MEMORY`.
 */
export function prepareOutputs(options: OutputOptions, returns: readonly AttentionReturn[], shapes: OutputShapes, operands: Operands): Outputs {
  const { return: names = [] } = options;
  const wanted = checkNames(names, returns, 'return');
  const out = operands.output(shapes.out, outDTypeOf(options, operands), 'out', options.out);
  const result: Result = { out };
  if (wanted.includes('lse')) result.lse = operands.output(shapes.lse, 'f32', 'lse');
  if (wanted.includes('weights')) result.weights = operands.output(shapes.scores, 'f32', 'weights');
  if (wanted.includes('dropoutMask')) result.dropoutMask = operands.output(shapes.scores, 'bool', 'dropoutMask');
  const record: wire.AttentionOutputs = {
    out: operands.operandOf(out),
    lse: operands.operandOf(result.lse),
    weights: operands.operandOf(result.weights),
    dropoutMask: operands.operandOf(result.dropoutMask),
  };
  if (options.capture === undefined) return { result: operands.disposable(result), record, captures: [] };

  const captures = captureRecords(options.capture, shapes.scores, operands);
  result.captures = captures.tensors;
  return { result: operands.disposable(result), record, captures: captures.records };
}

/** Call this immediately before the call that takes the captures: nothing may fail in between. */
export function pushCaptures({ args }: Runtime, { captures }: Outputs, operands: Operands): void {
  for (const capture of captures) {
    wire.pushCapture(args, capture);
    operands.run((raw) => raw.pushCapture());
  }
}

function outDTypeOf({ out, outDtype }: OutputOptions, operands: Operands): FloatDType {
  if (outDtype !== undefined) return checkChoice(outDtype, floatDTypes, 'outDtype');
  const dtype = operands.operandOf(out)?.dtype;
  return isHalf(dtype) ? dtype : 'f32';
}
