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
    try {
      this.#core = this.#open(input);
    } catch (error) {
      if ((error as MultiheadError).argument !== 'weights' || input.weights !== undefined) throw error;
      // Blocks of GGUF's files that have no kernel become int8 while they are uploaded.
      this.#core = this.#open({ ...input, weights: 'int8' });
    }
  }

  #open(input: LoaderInput): CoreLoader {
    const core = new CoreLoader(this.#runtime, input, false);
    try {
      this.#weights = new GpuWeights(this.#runtime, this.#place, core.handle);
    } catch (error) {
      core.dispose();
      throw error;
    }
    return core;
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

/** Loads a model on both sides, and only in the core if the GPU fails. */
class AutoLoader implements WeightLoader {
  readonly #core: CoreLoader;
  readonly #gpu: GpuLoader;
  #failure: MultiheadError | undefined;

  constructor(core: CoreLoader, gpu: GpuLoader) {
    this.#core = core;
    this.#gpu = gpu;
  }

  get needed(): Int32Array {
    return this.#core.needed;
  }

  async #onGpu<R>(run: () => Promise<R>): Promise<R | undefined> {
    try {
      return this.#failure === undefined ? await run() : undefined;
    } catch (error) {
      if (!isOfGpu(error)) throw error;
      this.#failure = error as MultiheadError;
      this.#gpu.abandon();
      return undefined;
    }
  }

  async give(tensor: number, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    this.#core.give(tensor, bytes);
    await this.#onGpu(() => this.#gpu.give(tensor, bytes));
  }

  async finish(): Promise<ModelEngine> {
    const core = this.#core.finish();
    const gpu = await this.#onGpu(() => this.#gpu.finish());
    return new AutoModel(core, gpu, this.#failure?.message);
  }

  dispose(): void {
    this.#core.dispose();
    if (this.#failure === undefined) this.#gpu.dispose();
  }
}

/** True for an error that leaves a model to the CPU. */
const isOfGpu = (error: unknown): boolean => {
  const { code, argument } = error as MultiheadError;
  return ['E_GPU', 'E_GPU_LOST', 'E_MEMORY'].includes(code) || argument === 'device';
};

interface Place {
  readonly openLoader: OpenLoader;
  readonly abandon: () => void;
}

/** What `openModel` needs of a GPU. With `falls`, the core takes what a GPU does not, and says why. Rejects with `E_GPU`. */
export async function openGpuLoader(runtime: Runtime, falls: boolean, signal: AbortSignal | undefined): Promise<Place> {
  let place: GpuPlace | undefined;
  let reason: string | undefined;
  try {
    place = await openPlace(runtime, signal);
    if (falls && place.info.software) reason = `${place.info.description}, which computes on the CPU`;
    else await runtime.loadPart?.('gpu');
  } catch (error) {
    reason = (error as MultiheadError).message;
    if (!falls || signal?.aborted) {
      place?.close();
      throw error;
    }
  }
  if (reason !== undefined) place?.close();
  const models: { dispose(): void }[] = [];
  const openLoader = (input: LoaderInput): WeightLoader => {
    if (reason !== undefined || place === undefined) return new CoreLoader(runtime, input, true, `cpu: ${reason}`);
    let gpu: GpuLoader | undefined;
    try {
      gpu = new GpuLoader(runtime, input, place, models);
    } catch (error) {
      if (!falls || !isOfGpu(error)) throw error;
      reason = (error as MultiheadError).message;
      if (models.length === 0) place.close();
      return new CoreLoader(runtime, input, true, `cpu: ${reason}`);
    }
    if (!falls) return gpu;
    try {
      return new AutoLoader(new CoreLoader(runtime, input), gpu);
    } catch (error) {
      // A model that is too large for WebAssembly may fit on the GPU.
      if ((error as MultiheadError).code === 'E_MEMORY') return gpu;
      gpu.dispose();
      throw error;
    }
  };
  const abandon = (): void => {
    for (const model of models) model.dispose();
    place?.close();
  };
  return { openLoader, abandon };
}
