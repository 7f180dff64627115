// Calls with { transfer: true } take the buffers of their operands from the caller, and return them in the
// result's `operands`. If one worker runs the call, the buffers themselves are sent; a divided call copies parts of them
// as usual.

import { MultiheadError, optionError } from '../runtime/errors.js';
import type { ReadTensor } from '../runtime/read_tensor.js';
import type { PlainTensor } from '../types/index.js';
import type { CallOptions } from './arguments.js';
import type { Exchange } from './shared/exchange.js';

// TypeScript declares this function only in its DOM library.
declare const structuredClone: <T>(value: T, options: { transfer: ArrayBuffer[] }) => T;

export class TransferredOperands {
  readonly #tensors: readonly ReadTensor[];
  #buffers: ArrayBuffer[];
  readonly #sizes: readonly number[];

  /** Takes all buffers or none. With shared memory, takes none. Throws `E_OPTION`. */
  constructor(exchange: Exchange, tensors: readonly (ReadTensor | undefined)[]) {
    this.#tensors = tensors.filter((tensor) => tensor !== undefined);
    for (const tensor of this.#tensors) {
      if (tensor.isTensor) throw notTransferable(tensor.argument, 'a tensor, whose memory cannot be transferred');
      // Throws if the buffer has been transferred before.
      tensor.numbers();
    }
    const given = exchange === 'messages' ? this.#tensors.map(({ buffer }) => buffer) : [];
    const buffers = [...new Set(given.filter((buffer) => buffer !== undefined))];
    this.#sizes = buffers.map(({ byteLength }) => byteLength);
    try {
      this.#buffers = buffers.length === 0 ? [] : structuredClone(buffers, { transfer: buffers });
    } catch (cause) {
      throw notTransferable('transfer', String(cause));
    }
    this.#move(buffers, this.#buffers);
  }

  /** Buffers to transfer with a task that reads the operands in place. */
  get buffers(): ArrayBuffer[] {
    return this.#buffers;
  }

  /** Receives the buffers from the worker after the task. */
  returned(buffers: readonly ArrayBuffer[]): void {
    this.#move(this.#buffers, buffers);
    this.#buffers = [...buffers];
  }

  #move(from: readonly ArrayBuffer[], to: readonly ArrayBuffer[]): void {
    for (const tensor of this.#tensors) {
      const at = tensor.buffer === undefined ? -1 : from.indexOf(tensor.buffer);
      if (at >= 0) tensor.moveTo(to[at] as ArrayBuffer);
    }
  }

  /** Operands by argument name; undefined if a worker still has their buffers. */
  tensors(): Record<string, PlainTensor> | undefined {
    if (this.#buffers.some(({ byteLength }, index) => byteLength !== this.#sizes[index])) return undefined;
    return Object.fromEntries(this.#tensors.map((tensor) => [tensor.argument, tensor.given() as PlainTensor]));
  }
}

const notTransferable = (argument: string, got: string): MultiheadError =>
  optionError(argument, 'with transfer: true, { data, shape } with an array whose buffer can be transferred', got);

/** Runs a call whose arguments are valid; adds the transferred operands to its result or error. */
export async function withTransfer<R>(
  exchange: Exchange,
  { transfer }: CallOptions,
  tensors: readonly (ReadTensor | undefined)[],
  body: (transferred: TransferredOperands | undefined) => Promise<R>,
): Promise<R> {
  if (!transfer) return body(undefined);
  const transferred = new TransferredOperands(exchange, tensors);
  try {
    const result = await body(transferred);
    return { ...result, operands: transferred.tensors() };
  } catch (error) {
    const back = transferred.tensors();
    if (error instanceof MultiheadError && back !== undefined) Object.assign(error, { operands: back });
    throw error;
  }
}
