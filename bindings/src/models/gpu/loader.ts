// openModel() with a GPU: finds the device, and what computes if there is none.

import { type GpuPlace, openPlace } from './device.js';
import type { MultiheadError } from '../../runtime/errors.js';
import type { Runtime } from '../../runtime/operands.js';
import type { Int32 } from '../../types/wire.js';
import type { LoaderInput, ModelEngine, OpenLoader, WeightLoader } from '../core/engine.js';
import { CoreLoader } from '../core/loader.js';
import { AutoModel } from './auto.js';
import { GpuModel } from './model.js';
import { GpuWeights } from './weights.js';

class GpuLoader implements WeightLoader {
  readonly #core: CoreLoader;
  readonly #runtime: Runtime;
  readonly #place: GpuPlace;
  /** The models of one openModel(), which ends them if it fails. */
  readonly #models: { dispose(): void }[];
  #weights: GpuWeights | undefined;

  constructor(runtime: Runtime, input: LoaderInput, place: GpuPlace, models: { dispose(): void }[]) {
    this.#runtime = runtime;
    this.#place = place;
    this.#models = models;
    this.#core = new CoreLoader(runtime, input, false);
    try {
      this.#weights = new GpuWeights(runtime, place, this.#core.handle);
    } catch (error) {
      this.#core.dispose();
      throw error;
    }
  }

  get needed(): Int32Array {
    return this.#core.needed;
  }

  async give(tensor: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    this.#core.give(tensor, bytes);
    await this.#weights?.send(this.#core.handle);
  }

  async finish(): Promise<GpuModel> {
    const core = this.#core.finish();
    const weights = this.#weights as GpuWeights;
    try {
      await weights.send(0 as Int32);
      await weights.sendVectors();
    } catch (error) {
      core.dispose();
      throw error;
    }
    this.#weights = undefined;
    const model = new GpuModel(this.#runtime, this.#place, core, weights);
    this.#models.push(model);
    return model;
  }

  dispose(): void {
    this.#weights?.release();
    this.#core.dispose();
  }

  /** Leaves the device, too. */
  abandon(): void {
    this.dispose();
    this.#place.close();
  }
}

/** Loads a model on both sides, and only on the CPU if the GPU fails. */
class AutoLoader implements WeightLoader {
  readonly #cpu: WeightLoader;
  #gpu: GpuLoader | undefined;
  /** Why there is no GPU. */
  #reason: string;

  constructor(cpu: WeightLoader, gpu: GpuLoader | undefined, reason = '') {
    this.#cpu = cpu;
    this.#gpu = gpu;
    this.#reason = reason;
  }

  get needed(): Int32Array {
    return this.#cpu.needed;
  }

  async #onGpu<R>(run: (gpu: GpuLoader) => Promise<R>): Promise<R | undefined> {
    try {
      return this.#gpu && (await run(this.#gpu));
    } catch (error) {
      if (!isOfGpu(error)) throw error;
      this.#reason = (error as MultiheadError).message;
      this.#gpu?.abandon();
      this.#gpu = undefined;
      return undefined;
    }
  }

  async give(tensor: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    await this.#onGpu((gpu) => gpu.give(tensor, bytes));
    // A worker takes the array itself.
    await this.#cpu.give(tensor, bytes);
  }

  async finish(): Promise<ModelEngine> {
    const cpu = await this.#cpu.finish();
    const gpu = await this.#onGpu((loader) => loader.finish());
    return new AutoModel(cpu, gpu, this.#reason);
  }

  dispose(): void {
    this.#cpu.dispose();
    this.#gpu?.dispose();
  }
}

/** True for an error that leaves a model to the CPU. */
const isOfGpu = (error: unknown): boolean => {
  const { code, argument } = error as MultiheadError;
  return ['E_GPU', 'E_GPU_LOST', 'E_MEMORY'].includes(code) || argument === 'device';
};

/** The place where a model is loaded. `openLoader` makes a loader there; `abandon` ends everything there if opening fails. */
export interface Place {
  readonly openLoader: OpenLoader;
  readonly abandon: () => void;
}

/** A browser has an adapter and a device in less than one, unless it hangs: who has a CPU should not wait for that. */
const secondsBesideCpu = 5;

/** What `openModel` needs of a GPU. `cpu` takes what a GPU does not, and says why; rejects with `E_GPU` without one. */
export async function openGpuLoader(runtime: Runtime, cpu: Place | undefined, signal: AbortSignal | undefined): Promise<Place> {
  let place: GpuPlace | undefined;
  let reason: string | undefined;
  try {
    place = await openPlace(runtime, signal, cpu && secondsBesideCpu);
    if (cpu && place.info.software) reason = `${place.info.description}, which computes on the CPU`;
    else await runtime.loadPart?.('gpu');
  } catch (error) {
    reason = (error as MultiheadError).message;
    if (!cpu || signal?.aborted) {
      place?.close();
      cpu?.abandon();
      throw error;
    }
  }
  if (reason !== undefined) place?.close();
  const models: { dispose(): void }[] = [];
  const openLoader = async (input: LoaderInput): Promise<WeightLoader> => {
    let gpu: GpuLoader | undefined;
    try {
      if (reason === undefined) gpu = new GpuLoader(runtime, input, place as GpuPlace, models);
    } catch (error) {
      if (!cpu || !isOfGpu(error)) throw error;
      reason = (error as MultiheadError).message;
      if (models.length === 0) place?.close();
    }
    if (!cpu) return gpu as GpuLoader;
    try {
      return new AutoLoader(await cpu.openLoader(input), gpu, reason);
    } catch (error) {
      // A model that is too large for WebAssembly may fit on the GPU.
      if (gpu !== undefined && (error as MultiheadError).code === 'E_MEMORY') {
        cpu.abandon();
        return gpu;
      }
      gpu?.dispose();
      throw error;
    }
  };
  const abandon = (): void => {
    cpu?.abandon();
    for (const model of models) model.dispose();
    place?.close();
  };
  return { openLoader, abandon };
}
