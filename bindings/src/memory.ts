// The WebAssembly memory of one module: blocks in it, and what they add up to.

import { MultiheadError } from './errors.js';
import type { RawModule } from './raw.js';
import type { DataOf, DType, MemoryInfo } from './types.js';

/** A piece of WebAssembly memory. Address 0 is the block of a tensor without elements. */
export interface Block {
  readonly address: number;
  readonly bytes: number;
}

/** The most that a 32-bit size can say; anything longer would wrap around. */
const addressLimit = 2 ** 32 - 1;

const mebibytes = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

/** `asked` is a number of bytes, or the C++ core's own words. */
export function outOfMemory(
  argument: string,
  asked: number | string,
  heap: number,
): MultiheadError {
  const expected = typeof asked === 'number' ? `${asked} bytes (${mebibytes(asked)})` : asked;
  const got = `a WebAssembly heap of ${heap} bytes (${mebibytes(heap)}) that cannot grow that far`;
  return new MultiheadError('E_MEMORY', {
    argument,
    expected,
    got,
    message: `${argument}: out of memory, asked for ${expected}, with ${got}`,
  });
}

export class Heap {
  readonly #raw: RawModule;
  readonly #abandoned: FinalizationRegistry<Block & { shape: string }> | undefined;
  #live = 0;
  #bytes = 0;
  #peak = 0;
  #warned = false;

  constructor(raw: RawModule) {
    this.#raw = raw;
    if (typeof FinalizationRegistry === 'function') {
      this.#abandoned = new FinalizationRegistry((held) => {
        this.#live -= 1;
        this.release(held);
        this.#warnOnce(held.shape);
      });
    }
  }

  /** The memory as it is now: a growth detaches the buffer that was here before. */
  get buffer(): ArrayBufferLike {
    return this.#raw.HEAPU8.buffer;
  }

  info(): MemoryInfo {
    return {
      live: this.#live,
      bytes: this.#bytes,
      peak: this.#peak,
      heap: this.buffer.byteLength,
    };
  }

  /** Throws `E_MEMORY` in the name of `argument`. The memory is not cleared. */
  allocate(bytes: number, argument: string): Block {
    if (bytes === 0) return { address: 0, bytes };
    const address = bytes <= addressLimit ? this.#raw.allocate(bytes) : 0;
    if (address === 0) throw outOfMemory(argument, bytes, this.buffer.byteLength);
    this.#bytes += bytes;
    this.#peak = Math.max(this.#peak, this.#bytes);
    return { address, bytes };
  }

  release(block: Block): void {
    if (block.address === 0) return;
    this.#raw.release(block.address);
    this.#bytes -= block.bytes;
  }

  /** A block with a copy of `data`, which may itself be a view of this memory. */
  allocateCopy<D extends DType>(dtype: D, data: DataOf<D>, argument: string): Block {
    const { buffer, byteOffset, byteLength, length } = data;
    const inside = buffer === this.buffer;
    const block = this.allocate(byteLength, argument);
    if (block.address !== 0) {
      // The allocation may have grown the memory, and so detached `data`.
      const source = inside ? this.view(dtype, byteOffset, length) : data;
      this.view(dtype, block.address, length).set(source);
    }
    return block;
  }

  view<D extends DType>(dtype: D, address: number, size: number): DataOf<D> {
    const view =
      dtype === 'f32'
        ? new Float32Array(this.buffer, address, size)
        : new Uint8Array(this.buffer, address, size);
    return view as DataOf<D>;
  }

  /** Counts a tensor, and frees its block when the tensor is collected without disposal. */
  adopt(owner: object, block: Block, shape: string): void {
    this.#live += 1;
    this.#abandoned?.register(owner, { ...block, shape }, owner);
  }

  /** The end of what adopt() began: the owner disposes its block itself. */
  retire(owner: object, block: Block): void {
    this.#abandoned?.unregister(owner);
    this.#live -= 1;
    this.release(block);
  }

  #warnOnce(shape: string): void {
    if (this.#warned) return;
    this.#warned = true;
    console.warn(
      `multihead: a tensor of shape ${shape} was garbage-collected without dispose(). Its memory ` +
        'is free now, but later than it could have been: use `using`, dispose() or scope(). ' +
        'This warning comes once.',
    );
  }
}
