// mh.rotate: rotary position embedding on its own.

import { ropeRecord, rotationNames } from './attention_options.js';
import { call, checkRank, type Runtime } from './operands.js';
import { readOptions } from './options.js';
import { coreOf } from './tensor.js';
import type { RopeRotation, Tensor, TensorLike } from './types.js';
import * as wire from './wire.js';

export function rotate(
  runtime: Runtime,
  x: TensorLike,
  positions: Int32Array,
  rope: RopeRotation,
): Tensor {
  const record = ropeRecord(readOptions(rope, rotationNames, 'rope'));
  return call(runtime, (operands) => {
    const input = operands.input(x, ['f32'], 'x');
    checkRank(input, '(B, H, N, d)', 'x');
    const span = operands.span(positions, 'i32', 'positions');
    const y = operands.output(input.shape, 'f32', 'rotate');
    wire.rotate(runtime.args, input, span, record, coreOf(y));
    operands.run(() => runtime.raw.rotate());
    return y;
  });
}
