// Integers that every call of a loop passes: copied into memory that is kept between calls.

import { optionError } from '../runtime/errors.js';
import { type Block, bytesPerElement, type Heap } from '../runtime/memory.js';
import { describeData } from '../runtime/tensor.js';
import { firstOf, typedArrayName } from '../runtime/typed_arrays.js';
import type { Span, Uint32 } from '../types/wire.js';

export class IntegerInput implements Span<'i32'> {
  address: Uint32 = 0;
  length: Uint32 = 0;
  readonly #heap: Heap;
  readonly #argument: string;
  #block: Block = { address: 0, bytes: 0 };
  #view: Int32Array | undefined;

  constructor(heap: Heap, argument: string) {
    this.#heap = heap;
    this.#argument = argument;
  }

  get bytes(): number {
    return this.#block.bytes;
  }

  /** Copies the integers. Throws `E_OPTION` unless `values` is an Int32Array; `E_MEMORY`. */
  set(values: unknown): void {
    if (typedArrayName(values) !== 'Int32Array') {
      throw optionError(this.#argument, 'an Int32Array', describeData(values));
    }
    const integers = values as Int32Array;
    const length = integers.length;
    if (length * bytesPerElement('i32') > this.#block.bytes) {
      const larger = this.#heap.allocateCopy('i32', integers, this.#argument);
      this.release();
      this.#block = larger;
      this.address = larger.address;
    } else {
      this.#whole().set(firstOf(integers, length));
    }
    this.length = length as Uint32;
  }

  release(): void {
    this.#heap.release(this.#block);
    this.#view = undefined;
  }

  /** A view of the whole block. When the memory grows, it gets a new buffer. */
  #whole(): Int32Array {
    if (this.#view === undefined || this.#view.buffer !== this.#heap.buffer) {
      const { address, bytes } = this.#block;
      this.#view = this.#heap.view('i32', address, bytes / bytesPerElement('i32'));
    }
    return this.#view;
  }
}
