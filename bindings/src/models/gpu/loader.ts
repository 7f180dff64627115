// openModel() with a GPU: finds the device, and what computes if there is none.

import type { MultiheadError } from '../../runtime/errors.js';
import type { Runtime } from '../../runtime/operands.js';
import type { Int32 } from '../../types/wire.js';
import type { LoaderInput, OpenLoader, WeightLoader } from '../core/engine.js';
import { CoreLoader } from '../core/loader.js';
import { type GpuPlace, openPlace } from './device.js';
import { GpuModel } from './model.js';
import { GpuWeights } from './weights.js';

class GpuLoader implements WeightLoader {
  readonly #core: CoreLoader;
  readonly #runtime: Runtime;
  readonly #place: GpuPlace;
  #weights: GpuWeights | undefined;

  constructor(runtime: Runtime, input: LoaderInput, place: GpuPlace) {
    this.#runtime = runtime;
    this.#place = place;
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
    return new GpuModel(this.#runtime, this.#place, core, weights);
  }

  dispose(): void {
    this.#weights?.release();
    this.#core.dispose();
  }
}

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
  const onCpu = (input: LoaderInput, why: string): WeightLoader => new CoreLoader(runtime, input, true, `cpu: ${why}`);
  const openLoader = (input: LoaderInput): WeightLoader => {
    if (reason !== undefined || place === undefined) return onCpu(input, reason ?? '');
    try {
      return new GpuLoader(runtime, input, place);
    } catch (error) {
      const { code, argument, message } = error as MultiheadError;
      if (!falls || (code !== 'E_MEMORY' && argument !== 'device')) throw error;
      place.close();
      return onCpu(input, (reason = message));
    }
  };
  return { openLoader, abandon: () => place?.close() };
}
