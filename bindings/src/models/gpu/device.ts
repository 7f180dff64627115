// The device of models: one for all of this thread, since its pipelines take seconds to compile, with the memory and the calls that models
// need of it.

import { kernels } from '../../generated/kernels.js';
import type { Storage } from '../../gpu/buffers.js';
import { Player } from '../../gpu/device.js';
import { openDevice } from '../../gpu/open.js';
import { deviceOf, readPlan } from '../../gpu/plan.js';
import { type GpuDevice, readGpuPlan } from '../../generated/gpu_wire.js';
import type { Heap } from '../../runtime/memory.js';
import { call, type Operands, type Runtime } from '../../runtime/operands.js';
import type { GpuInfo } from '../../types/index.js';

interface SharedDevice {
  readonly player: Player;
  readonly info: GpuInfo;
  readonly users: Set<GpuPlace>;
}

/** The one that was opened last. */
let shared: SharedDevice | undefined;

export class GpuPlace {
  readonly player: Player;
  readonly info: GpuInfo;
  readonly limits: GpuDevice;
  readonly #heap: Heap;
  readonly #device: SharedDevice;

  constructor(heap: Heap, device: SharedDevice) {
    this.#heap = heap;
    this.#device = device;
    this.player = device.player;
    this.info = device.info;
    this.limits = deviceOf(this.player.device, this.info);
    device.users.add(this);
  }

  /** Memory that counts until release(). Throws `E_MEMORY`. */
  allocate(bytes: number, argument: string): Storage {
    const storage = this.player.allocate(bytes, argument);
    this.#heap.countGpu(storage.bytes);
    return storage;
  }

  release(storage: Storage): void {
    this.#heap.countGpu(-storage.bytes);
    this.player.release(storage);
  }

  /** Resolves when the GPU has done everything so far. */
  idle(): Promise<unknown> {
    return this.player.wait(this.player.device.queue.onSubmittedWorkDone());
  }

  /** Plays the plan that a function of the core makes. `outputs` are lengths of floats: the last operands, which are read. */
  async play(runtime: Runtime, buffers: readonly Storage[], outputs: readonly number[], plan: (operands: Operands) => void) {
    const { args } = runtime;
    const made: Storage[] = [];
    try {
      for (const length of outputs) made.push(this.allocate(4 * length, 'outputs'));
      const words = call(runtime, (operands) => {
        plan(operands);
        return new Uint32Array(readGpuPlan(args.results()).words.slice().buffer);
      });
      const operands = [...buffers, ...made].map((storage) => ({ storage, offset: 0 }));
      this.player.play(readPlan(words), operands, buffers, made);
      const read = made.map((storage, at) => this.player.read({ storage, offset: 0 }, 4 * (outputs[at] as number)));
      return (await Promise.all(read)).map((bytes) => new Float32Array(bytes));
    } finally {
      for (const storage of made) this.release(storage);
    }
  }

  /** The last user's close() ends the device. */
  close(): void {
    const { users } = this.#device;
    if (!users.delete(this) || users.size > 0) return;
    if (shared === this.#device) shared = undefined;
    this.player.close(() => this.player.device.destroy());
  }
}

/** Opens a device unless one is open, within so many seconds if they are given. Rejects with `E_GPU`, `E_ABORTED`. */
export async function openPlace({ heap }: Runtime, signal: AbortSignal | undefined, seconds?: number): Promise<GpuPlace> {
  if (shared === undefined || shared.player.lost !== undefined) {
    const { device, info } = await openDevice({ signal }, seconds);
    shared = { player: new Player(device, kernels), info, users: new Set() };
  }
  return new GpuPlace(heap, shared);
}
