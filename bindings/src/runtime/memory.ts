// The WebAssembly memory of one module: allocates blocks and counts their bytes.

import type { DataOf, DType, MemoryInfo } from '../types/index.js';
import type { Span, Uint32 } from '../types/wire.js';
import { MultiheadError } from './errors.js';
import type { GuardedModule } from './guard.js';
import type { ScopeStack } from './scope.js';
import { firstOf } from './typed_arrays.js';

/** Element type of a block: a tensor dtype, or 32-bit integers. */
export type ElementType = DType | 'i32';
type ElementsOf<E extends ElementType> = E extends DType ? DataOf<E> : Int32Array;

export const arrayOf = {
  f32: Float32Array,
  f16: Uint16Array,
  bf16: Uint16Array,
  bool: Uint8Array,
  i32: Int32Array,
} as const;

export const bytesPerElement = (type: ElementType): number => arrayOf[type].BYTES_PER_ELEMENT;

/** A block of WebAssembly memory. The address is 0 if the block has no bytes. */
export interface Block {
  readonly address: Uint32;
  readonly bytes: Uint32;
}

/** The span of all elements of a block. */
export const spanOf = <E extends 'f32' | 'i32'>({ address, bytes }: Block, type: E): Span<E> => ({
  address,
  length: (bytes / bytesPerElement(type)) as Uint32,
});

/** True if the number of bytes fits into 32 bits. WebAssembly takes a larger one modulo 2³². */
const fits = (bytes: number): bytes is Uint32 => bytes < 2 ** 32;

const mebibytes = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

/** Bytes of the largest block, see context.cc. */
const mostOfBlock = 2 ** 31 - 2 ** 20 - 1;

/** `asked`: a number of bytes, or a sentence from the core. */
export function outOfMemory(argument: string, asked: number | string, heap: number): MultiheadError {
  const expected = typeof asked === 'number' ? `${asked} bytes (${mebibytes(asked)})` : asked;
  const isTooLarge = typeof asked === 'number' && asked > mostOfBlock;
  const limit = isTooLarge ? 'in which a tensor has at most 2047 MiB' : 'that cannot grow that far';
  const got = `a WebAssembly heap of ${heap} bytes (${mebibytes(heap)}) ${limit}`;
  return new MultiheadError('E_MEMORY', {
    argument,
    expected,
    got,
    message: `${argument}: out of memory, asked for ${expected}, with ${got}`,
  });
}

/**
 * Cleanup record: memory that an object owns, and how to free it. Must not reference its owner, or the owner would
 * never be collected.
 */
export interface CleanupRecord {
  /** For a warning: "a tensor of shape (2, 3)". */
  what(): string;
  free(): void;
}

/** Runs `make`, which allocates `bytes` of JavaScript's memory. Throws `E_MEMORY` if that fails. */
export function onJavaScriptHeap<T>(bytes: number, argument: string, make: () => T): T {
  try {
    return make();
  } catch (cause) {
    if (!(cause instanceof RangeError)) throw cause;
    throw new MultiheadError('E_MEMORY', {
      argument,
      expected: `${bytes} bytes (${mebibytes(bytes)}) of JavaScript's memory`,
      got: cause.message,
      cause,
    });
  }
}

export class Heap {
  /** The scopes that own tensors made from another tensor. */
  readonly scopes: ScopeStack;
  readonly #raw: GuardedModule;
  readonly #abandoned: FinalizationRegistry<CleanupRecord> | undefined;
  #live = 0;
  #bytes = 0;
  #peak = 0;
  #gpu = 0;
  /** What the instance disposes with itself: GPUs. */
  readonly ends = new Set<() => void>();
  #warned = false;

  constructor(raw: GuardedModule, scopes: ScopeStack) {
    this.#raw = raw;
    this.scopes = scopes;
    if (typeof FinalizationRegistry === 'function') {
      this.#abandoned = new FinalizationRegistry((held) => {
        this.#live -= 1;
        if (this.#raw.dead) return;
        this.#free(held);
        this.#warnOnce(held.what());
      });
    }
  }

  /** The current memory. Growth replaces it and detaches the old buffer. */
  get buffer(): ArrayBufferLike {
    return this.#raw.HEAPU8.buffer;
  }

  info(): MemoryInfo {
    return {
      live: this.#live,
      bytes: this.#bytes,
      peak: this.#peak,
      heap: this.buffer.byteLength,
      gpu: this.#gpu,
    };
  }

  /** True once the whole instance is disposed, and with it every object in this memory. */
  get disposed(): boolean {
    return this.#raw.disposed;
  }

  /** Throws `E_FATAL` or `E_DISPOSED` once the instance is dead. */
  assertAlive(): void {
    this.#raw.assertAlive();
  }

  /** Allocates a block without clearing it. Throws `E_MEMORY` that names `argument`. */
  allocate(bytes: number, argument: string): Block {
    this.assertAlive();
    if (bytes === 0) return { address: 0, bytes };
    const address = fits(bytes) ? ((this.#raw._multihead_allocate(bytes) >>> 0) as Uint32) : 0;
    if (address === 0) throw outOfMemory(argument, bytes, this.buffer.byteLength);
    this.count(bytes);
    return { address, bytes: bytes as Uint32 };
  }

  release(block: Block): void {
    if (block.address === 0) return;
    this.count(-block.bytes);
    if (!this.#raw.dead) this.#raw._multihead_release(block.address);
  }

  /** Frees the memory. Does nothing in a dead instance, and does not report its error again. */
  #free(cleanup: CleanupRecord): void {
    try {
      cleanup.free();
    } catch (error) {
      if (!this.#raw.dead) throw error;
    }
  }

  /** Adds the bytes that the core has allocated for an object; a negative count after it has freed them. */
  count(bytes: number): void {
    this.#bytes += bytes;
    this.#peak = Math.max(this.#peak, this.#bytes);
  }

  end(): void {
    for (const end of this.ends) end();
  }

  /** Adds bytes of the GPU. */
  countGpu(bytes: number): void {
    this.#gpu += bytes;
  }

  /** A block with a copy of `data`, which may itself be a view of this memory. */
  allocateCopy(type: ElementType, data: ElementsOf<ElementType>, argument: string): Block {
    const [length, offset] = [data.length, data.byteOffset];
    const inside = data.buffer === this.buffer;
    const block = this.allocate(length * bytesPerElement(type), argument);
    if (block.address !== 0) {
      // The allocation may have grown the memory, which detaches `data`.
      const source = inside ? this.view(type, offset, length) : firstOf(data, length);
      this.view(type, block.address, length).set(source);
    }
    return block;
  }

  view<E extends ElementType>(type: E, address: number, size: number): ElementsOf<E> {
    return new arrayOf[type](this.buffer as ArrayBuffer, address, size) as ElementsOf<E>;
  }

  /** Counts an object. If it is garbage-collected without dispose(), its memory is freed. */
  adopt(owner: object, cleanup: CleanupRecord): void {
    this.#live += 1;
    this.#abandoned?.register(owner, cleanup, owner);
  }

  /** Undoes adopt() and frees the memory; called when the owner is disposed. */
  retire(owner: object, cleanup: CleanupRecord): void {
    this.#abandoned?.unregister(owner);
    this.#live -= 1;
    this.#free(cleanup);
  }

  #warnOnce(what: string): void {
    if (this.#warned) return;
    this.#warned = true;
    console.warn(
      `multihead: ${what} was garbage-collected without dispose(). Its memory ` +
        'is free now, but later than it could have been: use `using`, dispose() or scope(). ' +
        'This warning comes once.',
    );
  }
}

/** The memory of a model's parameters. Models and trainers share it, and it lives until the last of them is disposed. */
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
