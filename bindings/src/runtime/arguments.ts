// The block of WebAssembly memory that passes arguments to a call and numbers back. generated/wire.ts defines its
// contents and order.

import { blockLength, dtypes } from '../generated/tables.js';
import type { DType } from '../types/index.js';
import type { Operand, Whole64, WireReader, WireWriter } from '../types/wire.js';
import { MultiheadError } from './errors.js';
import { utf8Decoder } from './text.js';

/** Codes of the dtypes in the block. The core does not read the code of booleans. */
const dtypeCodes: Record<DType, number> = { ...dtypes, bool: 0 };

/** The part of the core that this file needs. */
interface Core {
  /** Replaced whenever the memory grows. */
  readonly HEAPU8: Uint8Array;
  argumentBlock(): number;
}

/** Created by the first load(), because importing the package runs no code. */
let decoder: TextDecoder | undefined;

/**
 * A function of wire.ts calls begin(), writes the arguments and calls close(). Nothing may allocate between close() and
 * the call of the core.
 */
export class Arguments implements WireWriter {
  readonly #core: Core;
  readonly #address: number;
  #block: Float64Array = new Float64Array();
  #results: Results | undefined;
  #next = 1;

  constructor(core: Core) {
    this.#core = core;
    this.#address = core.argumentBlock();
  }

  begin(): void {
    this.#refresh();
    this.#next = 1;
  }

  /** Drops the views of the memory, so that the engine can free it after mh.dispose(). */
  forget(): void {
    this.#block = new Float64Array();
    this.#results = undefined;
  }

  /** Writes the count of numbers, which the core compares with the count that it reads. */
  close(): void {
    if (this.#next > 1 && this.#block.length === 0) throw otherArguments();
    this.#refresh();
    this.#block[0] = this.#next - 1;
    this.#next = 1;
  }

  /** Makes a new view after growth of the memory has detached the old one. */
  #refresh(): void {
    if (this.#block.length > 0) return;
    this.#block = new Float64Array(this.#core.HEAPU8.buffer, this.#address, blockLength);
  }

  number(value: number): void {
    this.#block[this.#take(1)] = value;
  }

  flag(value: boolean): void {
    this.#block[this.#take(1)] = value ? 1 : 0;
  }

  optional(value: number | undefined): void {
    this.flag(value !== undefined);
    if (value !== undefined) this.number(value);
  }

  whole64({ low, high }: Whole64): void {
    const at = this.#take(2);
    this.#block[at] = low;
    this.#block[at + 1] = high;
  }

  /** Undefined means "not given" and has rank 0; a scalar has rank −1. */
  tensor(operand: Operand | undefined): void {
    if (operand === undefined) {
      this.number(0);
      return;
    }
    const { shape } = operand;
    const rank = shape.length;
    const at = this.#take(3 + rank);
    const block = this.#block;
    block[at] = rank || -1;
    block[at + 1] = operand.address;
    block[at + 2] = dtypeCodes[operand.dtype];
    for (let axis = 0; axis < rank; axis += 1) block[at + 3 + axis] = shape[axis] as number;
  }

  span({ address, length }: Parameters<WireWriter['span']>[0]): void {
    const at = this.#take(2);
    this.#block[at] = address;
    this.#block[at + 1] = length;
  }

  /** Reserves `count` places; returns the index of the first. */
  #take(count: number): number {
    const at = this.#next;
    this.#next = at + count;
    if (this.#next > blockLength) throw otherArguments();
    return at;
  }

  /**
   * Numbers that the last call has written into the block. Every call returns the same object, reset to the beginning.
   */
  results(): Results {
    this.#refresh();
    this.#results ??= new Results(this.#core);
    this.#results.begin(this.#block);
    return this.#results;
  }
}

/** Reads the block from its beginning. */
export class Results implements WireReader {
  readonly #core: Core;
  #block: Float64Array = new Float64Array();
  #next = 0;

  constructor(core: Core) {
    this.#core = core;
  }

  begin(block: Float64Array): void {
    this.#block = block;
    this.#next = 0;
  }

  number(): number {
    const value = this.#block[this.#next];
    if (value === undefined) throw otherArguments();
    this.#next += 1;
    return value;
  }

  flag(): boolean {
    return this.number() !== 0;
  }

  wholes(): number[] {
    return Array.from({ length: this.number() }, () => this.number());
  }

  doubles(): Float64Array {
    return this.#copy(Float64Array);
  }

  floats(): Float32Array<ArrayBuffer> {
    return this.#copy(Float32Array);
  }

  integers(): Int32Array {
    return this.#copy(Int32Array);
  }

  #copy<A extends { slice(): A }>(List: new (memory: ArrayBufferLike, address: number, length: number) => A): A {
    const address = this.number();
    return new List(this.#core.HEAPU8.buffer, address, this.number()).slice();
  }

  texts(): string[] {
    return Array.from({ length: this.number() }, () => this.text());
  }

  text(): string {
    const address = this.number();
    decoder ??= utf8Decoder();
    return decoder.decode(this.#core.HEAPU8.subarray(address, address + this.number()));
  }
}

/** The error for a mismatch between package and .wasm, which no caller can cause. */
export const otherArguments = (): MultiheadError =>
  new MultiheadError('E_FATAL', {
    argument: 'multihead',
    expected: 'as many numbers as the call of the core reads',
    got: 'others',
    message: 'multihead: the package and its .wasm disagree on a call; please report this',
  });
