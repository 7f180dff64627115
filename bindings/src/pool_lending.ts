// Calls with { transfer: true }: they take the buffers of their operands from the caller, and give them back in `lent`.
// A call that one worker runs sends the buffers themselves; others copy parts of them as usual.

import { MultiheadError } from './errors.js';
import type { CallOptions } from './pool_arguments.js';
import type { Exchange } from './pool_slots.js';
import type { ReadTensor } from './read_tensor.js';
import type { PlainTensor } from './types.js';

// Not in TypeScript's library without the DOM.
declare const structuredClone: <T>(value: T, options: { transfer: ArrayBuffer[] }) => T;

export class Lending {
  readonly #tensors: readonly ReadTensor[];
  #buffers: ArrayBuffer[];
  readonly #sizes: readonly number[];

  /** Takes the buffers, all or none. With shared memory it takes nothing. Throws `E_OPTION`. */
  constructor(exchange: Exchange, tensors: readonly (ReadTensor | undefined)[]) {
    this.#tensors = tensors.filter((tensor) => tensor !== undefined);
    for (const tensor of this.#tensors) {
      if (tensor.isTensor) throw notTransferable(tensor.argument, 'a tensor, whose memory cannot be transferred');
      // Throws if it has been transferred before.
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

  /** What is sent along with a task that reads them where they are. */
  get buffers(): ArrayBuffer[] {
    return this.#buffers;
  }

  /** After such a task. */
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

  /** The operands, by their arguments; undefined if a worker has their buffers. */
  tensors(): Record<string, PlainTensor> | undefined {
    if (this.#buffers.some(({ byteLength }, index) => byteLength !== this.#sizes[index])) return undefined;
    return Object.fromEntries(this.#tensors.map((tensor) => [tensor.argument, tensor.given() as PlainTensor]));
  }
}

const notTransferable = (argument: string, got: string): MultiheadError =>
  new MultiheadError('E_OPTION', {
    argument,
    expected: 'with transfer: true, { data, shape } with an array whose buffer can be transferred',
    got,
  });

/** Runs a call that has been checked; its result, or its error, gets what was lent. */
export async function lending<R>(
  exchange: Exchange,
  { transfer }: CallOptions,
  tensors: readonly (ReadTensor | undefined)[],
  body: (lent: Lending | undefined) => Promise<R>,
): Promise<R> {
  if (!transfer) return body(undefined);
  const lent = new Lending(exchange, tensors);
  try {
    const result = await body(lent);
    return { ...result, lent: lent.tensors() };
  } catch (error) {
    const back = lent.tensors();
    if (error instanceof MultiheadError && back !== undefined) Object.assign(error, { lent: back });
    throw error;
  }
}
