// Memory on the GPU: buffers that are used again, and what fails of it.

import { MultiheadError } from '../runtime/errors.js';

/** Bits of GPUBufferUsage, which Node does not have. */
export const usages = { mapRead: 0x1, copySrc: 0x4, copyDst: 0x8, uniform: 0x40, storage: 0x80 } as const;

/** Buffers of tensors can be bound, written, and read back. */
export const ofTensors = usages.storage | usages.copySrc | usages.copyDst;

/** Memory of a tensor, shared by all that use it. */
export interface Storage {
  readonly buffer: GPUBuffer;
  /** Bytes of the buffer that belong to the package; 0 for a buffer of the caller. */
  readonly bytes: number;
  /** Tensors and calls that use it. */
  users: number;
  /** Settles when the GPU has the memory. */
  readonly made: Promise<MultiheadError | undefined>;
  /** Settles when the GPU has accepted all that writes to it so far, with the error if something failed. Never rejects. */
  outcome: Promise<MultiheadError | undefined>;
}

/** The value of a key, which is made when it is first asked for. */
export function kept<K, V>(map: { get(key: K): V | undefined; set(key: K, value: V): unknown }, key: K, make: () => V): V {
  let value = map.get(key);
  if (value === undefined) map.set(key, (value = make()));
  return value;
}

/** Most bytes of buffers that wait to be used again. */
const mostIdle = 256 * 2 ** 20;

/**
 * The length of a buffer that holds `bytes`: one of four lengths between two powers of two, so that it fits many calls, if the device
 * has buffers that long.
 */
export function bufferLength(bytes: number, { limits }: GPUDevice): number {
  const step = bytes <= 1024 ? 256 : 2 ** (Math.floor(Math.log2(bytes - 1)) - 2);
  return Math.min(Math.max(256, Math.ceil(bytes / step) * step), limits.maxBufferSize - (limits.maxBufferSize % 4));
}

/** Buffers of one device that wait to be used again. They have any contents. */
export class BufferPool {
  readonly #device: GPUDevice;
  readonly #idle = new Map<string, GPUBuffer[]>();
  #idleBytes = 0;

  constructor(device: GPUDevice) {
    this.#device = device;
  }

  /** Throws `E_MEMORY` if no buffer of the device is so long. */
  find(bytes: number, argument: string, usage: number): GPUBuffer | undefined {
    const size = bufferLength(bytes, this.#device);
    if (bytes > size) {
      const [expected, got] = [`${bytes} bytes`, `a GPU with buffers of at most ${size} bytes`];
      throw new MultiheadError('E_MEMORY', { argument, expected, got, message: `${argument}: out of memory, asked for ${expected}, with ${got}` });
    }
    const found = this.#idle.get(`${usage} ${size}`)?.pop();
    if (found !== undefined) this.#idleBytes -= size;
    return found;
  }

  /** Call this after everything that uses the buffer was submitted. */
  give(buffer: GPUBuffer): void {
    const { size, usage } = buffer;
    if (this.#idleBytes + size > mostIdle) {
      buffer.destroy();
      return;
    }
    this.#idleBytes += size;
    kept(this.#idle, `${usage} ${size}`, () => []).push(buffer);
  }

  /** Destroys them. */
  empty(): void {
    for (const buffers of this.#idle.values()) for (const buffer of buffers) buffer.destroy();
    this.#idle.clear();
    this.#idleBytes = 0;
  }
}
