// Buffers that carry operands to workers and results back. Buffers are reused, so calls in a loop allocate none.

import { onJavaScriptHeap } from '../runtime/memory.js';
import type { Exchange } from './shared/exchange.js';

const least = 2 ** 16;
/** Most bytes of free buffers that are kept for later calls. */
const mostKept = 2 ** 28;

export class BufferPool {
  readonly #shared: boolean;
  readonly #most: number;
  #free: ArrayBufferLike[] = [];
  #kept = 0;

  /** `most`: the number of free buffers that are kept. */
  constructor(exchange: Exchange, most: number) {
    this.#shared = exchange === 'shared memory';
    this.#most = most;
  }

  /** Throws `E_MEMORY`. */
  take(bytes: number): ArrayBufferLike {
    const fits = (buffer: ArrayBufferLike): boolean => buffer.byteLength >= bytes && buffer.byteLength <= 4 * bytes + least;
    const at = this.#free.findIndex(fits);
    if (at >= 0) {
      const [buffer] = this.#free.splice(at, 1) as [ArrayBufferLike];
      this.#kept -= buffer.byteLength;
      return buffer;
    }
    const size = Math.ceil(Math.max(bytes, 1) / least) * least;
    return onJavaScriptHeap(size, 'buffer', () => (this.#shared ? new SharedArrayBuffer(size) : new ArrayBuffer(size)));
  }

  /** Returns a buffer after its task. */
  give(buffer: ArrayBufferLike | undefined): void {
    if (buffer === undefined || buffer.byteLength === 0) return;
    this.#free.push(buffer);
    this.#kept += buffer.byteLength;
    // Drop the oldest buffer first, because recent sizes are likely to be needed again.
    while (this.#free.length > this.#most || this.#kept > mostKept) {
      this.#kept -= (this.#free.shift() as ArrayBufferLike).byteLength;
    }
  }
}
