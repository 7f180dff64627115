// mh.linear: y = x·Wᵀ + bias. For the core, all axes of x but the last are one axis of rows.

import * as wire from '../generated/wire.js';
import { call, checkRank, type Operands, reshaped, type Runtime } from '../runtime/operands.js';
import { plain, readOptions } from '../runtime/options.js';
import { elements } from '../runtime/shape.js';
import type { WasmTensor } from '../runtime/tensor.js';
import type { LinearOptions, TensorLike } from '../types/index.js';
import type { Operand } from '../types/wire.js';

export function linear(runtime: Runtime, x: TensorLike, weight: TensorLike, given: LinearOptions = {}): WasmTensor<'f32'> {
  const options = readOptions(given, { bias: plain, out: plain }, 'linear');

  return call(runtime, (operands) => {
    const { inputRows, matrix, bias, y, outRows } = linearOperands(operands, x, weight, options);
    wire.linear(runtime.args, inputRows, matrix, bias, outRows);
    operands.run((raw) => raw.linear());
    return y;
  });
}

/** Reads the inputs and makes the output. Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
export function linearOperands(operands: Operands, x: unknown, weight: unknown, options: LinearOptions) {
  const input = operands.input(x, ['f32'], 'x');
  const matrix = operands.input(weight, ['f32'], 'weight');
  checkRank(matrix, '(out, in)', 'weight');
  const bias = operands.optional(options.bias, ['f32'], 'bias');

  const leading = input.shape.slice(0, -1);
  const rows = elements(leading);
  const [outWidth = 0] = matrix.shape;
  const inputRows = reshaped(input, [rows, input.shape.at(-1) ?? 0], 'x');
  const y = operands.output([...leading, outWidth], 'f32', 'out', options.out);
  const outRows = reshaped(operands.operandOf(y) as Operand<'f32'>, [rows, outWidth], 'out');
  return { inputRows, matrix, bias, y, outRows };
}
