// The memory of a model's parameters. Trainers share it, and it lives until the last of them is disposed.

import type { Heap } from './memory.js';

export class SharedParameters {
  readonly bytes: number;
  readonly #heap: Heap;
  #users = 0;

  constructor(heap: Heap, bytes: number) {
    this.#heap = heap;
    this.bytes = bytes;
  }

  /** Adds a user. Only the first user counts the bytes. */
  join(): this {
    if (this.#users === 0) this.#heap.count(this.bytes);
    this.#users += 1;
    return this;
  }

  leave(): void {
    this.#users -= 1;
    if (this.#users === 0) this.#heap.count(-this.bytes);
  }
}
