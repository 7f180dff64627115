// What every call on a GPU gets: the device, the core that plans for it, and the instance to which its tensors belong.

import { disposedError } from '../runtime/errors.js';
import type { GuardedModule } from '../runtime/guard.js';
import type { CleanupRecord, Heap } from '../runtime/memory.js';
import type { Runtime } from '../runtime/operands.js';
import type { ScopeStack } from '../runtime/scope.js';
import type * as wire from '../generated/gpu_wire.js';
import type { GpuInfo } from '../types/index.js';
import type { Uint32 } from '../types/wire.js';
import type { Storage } from './buffers.js';
import type { Player } from './device.js';
import { deviceOf } from './plan.js';
import { plannerRuntime } from './planner.js';

export class GpuRuntime {
  /** The module that plans. */
  readonly planner: Runtime;
  /** Counts tensors and their bytes, as those of mh. */
  readonly heap: Heap;
  readonly scopes: ScopeStack;
  readonly player: Player;
  readonly #device: wire.GpuDevice;
  #closed = false;

  /** What dispose() frees. Weak, so that the garbage collector can free it before. */
  readonly #owned = new Map<CleanupRecord, WeakRef<object>>();

  constructor(planner: GuardedModule, runtime: Runtime, player: Player, info: GpuInfo) {
    this.planner = plannerRuntime(planner, runtime, this);
    this.heap = runtime.heap;
    this.scopes = runtime.scopes;
    this.player = player;
    this.#device = deviceOf(player.device, info);
  }

  /** The device, as plans depend on it, for a call with these operands. */
  limits({ count }: { readonly count: Uint32 }): wire.GpuDevice {
    return { ...this.#device, operands: count };
  }

  get disposed(): boolean {
    return this.#closed || this.heap.disposed;
  }

  /** Frees everything, once. `end` ends the device, after all that was called before. */
  close(end: () => void): void {
    if (this.#closed) return;
    for (const [cleanup, owner] of this.#owned) {
      const held = owner.deref();
      if (held !== undefined) this.retire(held, cleanup);
    }
    this.#closed = true;
    this.planner.raw.dispose();
    this.planner.args.forget();
    this.player.close(end);
  }

  adopt(owner: object, cleanup: CleanupRecord): void {
    this.#owned.set(cleanup, new WeakRef(owner));
    // The garbage collector has no owner to give to retire().
    const free = (): void => {
      this.#owned.delete(cleanup);
      cleanup.free();
    };
    this.heap.adopt(owner, { what: () => cleanup.what(), free });
  }

  retire(owner: object, cleanup: CleanupRecord): void {
    this.#owned.delete(cleanup);
    this.heap.retire(owner, cleanup);
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
