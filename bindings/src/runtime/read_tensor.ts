// The tensors of a call that a pool divides, and of a state dict. Shape and dtype are read once, when the call is
// checked. The numbers are read when they are copied: if that is later, the caller may have disposed the tensor or detached
// its buffer since then.

import type { DataOf, DType, Shape } from '../types/index.js';
import type { Extents } from '../types/wire.js';
import { arrayOf } from './memory.js';
import { checkTensorLike } from './operands.js';
import { elements, type Ranks } from './shape.js';
import { checkData, coreOf, TensorCore } from './tensor.js';
import { isArrayBuffer, pristine } from './typed_arrays.js';

export interface Numbers<D extends DType = DType> {
  readonly dtype: D;
  readonly shape: Shape;
  readonly data: DataOf<D>;
}

export class ReadTensor<D extends DType = DType> {
  readonly argument: string;
  readonly shape: Extents;
  readonly dtype: D;
  #from: TensorCore<D> | DataOf<D>;
  readonly #offset: number;

  /** Throws `E_DISPOSED`, `E_SHAPE`, or `E_OPTION` for another dtype. */
  constructor(value: unknown, dtypes: readonly D[], argument: string, ranks?: Ranks) {
    const { dtype, shape, data } = checkTensorLike(value, dtypes, argument, ranks);
    this.argument = argument;
    this.shape = shape;
    this.dtype = dtype;
    this.#from = (coreOf(value) as TensorCore<D> | undefined) ?? data;
    // Stored now, because a detached array reports offset 0.
    this.#offset = data.byteOffset;
  }

  /** Throws `E_DISPOSED`, or `E_SHAPE` if the buffer is detached. */
  numbers(): Numbers<D> {
    const { argument, shape, dtype } = this;
    const from = this.#from;
    if (from instanceof TensorCore) {
      from.assertLive(argument);
      return { dtype, shape, data: from.view() };
    }
    const { data } = checkData(from, shape, [dtype], argument, dtype);
    return { dtype, shape, data: pristine(data, elements(shape)) };
  }

  /** True for a tensor of a load(), which lies in WebAssembly memory. */
  get isTensor(): boolean {
    return this.#from instanceof TensorCore;
  }

  /** The buffer of the caller's array; undefined for tensors and shared memory. */
  get buffer(): ArrayBuffer | undefined {
    if (this.#from instanceof TensorCore) return undefined;
    const buffer = this.#from.buffer;
    return isArrayBuffer(buffer) ? buffer : undefined;
  }

  /** Call this after the array's contents were transferred to `buffer`. */
  moveTo(buffer: ArrayBuffer): void {
    this.#from = new arrayOf[this.dtype](buffer, this.#offset, elements(this.shape)) as DataOf<D>;
  }

  given(): Numbers<D> {
    return { dtype: this.dtype, shape: this.shape, data: this.#from as DataOf<D> };
  }
}

/** True if the numbers lie in a SharedArrayBuffer. */
export const isShared = ({ data }: { readonly data: ArrayBufferView }): boolean =>
  typeof SharedArrayBuffer === 'function' && data.buffer instanceof SharedArrayBuffer;

export const asBytes = ({ data }: Numbers): Uint8Array => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
