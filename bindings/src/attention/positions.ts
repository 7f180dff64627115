// mh.alibiSlopes and mh.rotate: slopes of ALiBi and rotary position embedding on their own.

import * as wire from '../generated/wire.js';
import { call, checkRank, type Runtime } from '../runtime/operands.js';
import { checkCount, readOptions } from '../runtime/options.js';
import { coreOf } from '../runtime/tensor.js';
import type { RopeRotation, Tensor, TensorLike } from '../types/index.js';
import { ropeRecord, rotationNames } from './options.js';

export function alibiSlopes(runtime: Runtime, given: number): Float32Array {
  const heads = checkCount(given, 'heads');
  return call(runtime, (operands) => {
    const { address } = operands.alibiSlopes(heads);
    return runtime.heap.view('f32', address, heads).slice();
  });
}

export function rotate(runtime: Runtime, x: TensorLike, positions: Int32Array, rope: RopeRotation): Tensor {
  const record = ropeRecord(readOptions(rope, rotationNames, 'rope'));
  return call(runtime, (operands) => {
    const input = operands.input(x, ['f32'], 'x');
    checkRank(input, '(B, H, N, d)', 'x');
    const span = operands.span(positions, 'i32', 'positions');
    const y = operands.output(input.shape, 'f32', 'rotate');
    wire.rotate(runtime.args, input, span, record, coreOf(y));
    operands.run((raw) => raw.rotate());
    return y;
  });
}
