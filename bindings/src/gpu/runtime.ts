// What every call on a GPU gets: the device, the core that plans for it, and the instance to which its tensors belong.

import { seedWords } from '../attention/options.js';
import { dtypes, stridedRank } from '../generated/tables.js';
import { Arguments } from '../runtime/arguments.js';
import { disposedError } from '../runtime/errors.js';
import type { Heap } from '../runtime/memory.js';
import type { Runtime } from '../runtime/operands.js';
import type { ScopeStack } from '../runtime/scope.js';
import type * as wire from '../generated/wire.js';
import type { GpuInfo } from '../types/index.js';
import type { Operand, Uint32 } from '../types/wire.js';
import type { Storage } from './buffers.js';
import type { Player } from './device.js';

/** Writes tensors with strides, too, which only a GPU has. */
class StridedArguments extends Arguments {
  override tensor(operand: (Operand & { readonly strides?: readonly number[] }) | undefined): void {
    const { strides } = operand ?? {};
    if (operand === undefined || strides === undefined) {
      super.tensor(operand);
      return;
    }
    this.number(stridedRank + strides.length);
    this.number(operand.address);
    this.number(operand.dtype === 'bool' ? 0 : dtypes[operand.dtype]);
    for (const number of [...operand.shape, ...strides]) this.number(number);
  }
}

export class GpuRuntime {
  /** The module that plans. */
  readonly planner: Runtime;
  /** Counts tensors and their bytes, as those of mh. */
  readonly heap: Heap;
  readonly scopes: ScopeStack;
  readonly player: Player;
  readonly #device: Omit<wire.GpuDevice, 'operands'>;
  #closed = false;

  constructor(runtime: Runtime, player: Player, { subgroup, workgroupBytes, storageBuffers, bindingBytes }: GpuInfo) {
    this.planner = { ...runtime, args: new StridedArguments(runtime.raw) };
    this.heap = runtime.heap;
    this.scopes = runtime.scopes;
    this.player = player;
    const groups = player.device.limits.maxComputeWorkgroupsPerDimension;
    const bytes = seedWords(bindingBytes, 'bindingBytes');
    this.#device = { subgroup, workgroupBytes, storageBuffers, bindingBytes: bytes, groups } as Omit<wire.GpuDevice, 'operands'>;
  }

  /** The device, as plans depend on it, for a call with these operands. */
  limits({ count }: { readonly count: Uint32 }): wire.GpuDevice {
    return { ...this.#device, operands: count };
  }

  get disposed(): boolean {
    return this.#closed || this.heap.disposed;
  }

  close(): void {
    this.#closed = true;
    this.planner.args.forget();
  }

  /** Throws `E_FATAL`, `E_DISPOSED`. */
  assertLive(): void {
    this.heap.assertAlive();
    if (this.#closed) throw disposedError('gpu', 'a GPU');
  }

  /** Memory that mh.memory() counts until release(). */
  allocate(bytes: number, argument: string): Storage {
    const storage = this.player.allocate(bytes, argument);
    this.heap.countGpu(storage.bytes);
    return storage;
  }

  /** Undoes one use; the last one gives the memory back. */
  release(storage: Storage): void {
    storage.users -= 1;
    if (storage.users > 0 || storage.bytes === 0) return;
    this.heap.countGpu(-storage.bytes);
    this.player.release(storage);
  }
}
