// Operands of a call that the core checks and divides, but does not run: the tensors are not copied to its memory.

import { Operands, type Runtime } from '../../runtime/operands.js';
import { ReadTensor } from '../../runtime/read_tensor.js';
import { checkExtents, type Ranks } from '../../runtime/shape.js';
import type { TypedArray } from '../../runtime/typed_arrays.js';
import type { DType, Shape } from '../../types/index.js';
import type { Operand, Span, Uint32 } from '../../types/wire.js';

/** Address of operands that the core checks but does not read; must not be 0. */
export const nowhere = 64 as Uint32;

export class UncopiedOperands extends Operands {
  readonly #read = new Map<string, ReadTensor>();
  /** All arrays of the call by argument: those of the tensors, and those in the options. */
  readonly arrays = new Map<string, () => TypedArray>();

  override input<D extends DType>(value: unknown, dtypes: readonly D[], argument: string, ranks?: Ranks): Operand<D> {
    const tensor = new ReadTensor(value, dtypes, argument, ranks);
    this.#read.set(argument, tensor);
    this.arrays.set(argument, () => tensor.numbers().data);
    return { address: nowhere, dtype: tensor.dtype, shape: tensor.shape };
  }

  override span<E extends 'f32' | 'i32'>(value: unknown, type: E, argument: string): Span<E> {
    const span = super.span(value, type, argument);
    this.arrays.set(argument, () => value as TypedArray);
    return span;
  }

  /** The tensors that have been read, by argument. */
  tensors(): Record<string, ReadTensor> {
    return Object.fromEntries(this.#read);
  }
}

/** Checks a call: like call(), but without copies of its tensors. */
export function callUncopied<R>(runtime: Runtime, body: (operands: UncopiedOperands) => R): R {
  runtime.raw.assertAlive();
  const operands = new UncopiedOperands(runtime);
  try {
    return body(operands);
  } finally {
    operands.release();
  }
}

export function operandAt<D extends DType>(address: Uint32, dtype: D, shape: Shape): Operand<D> {
  checkExtents(shape, 'shape');
  return { address, dtype, shape };
}
