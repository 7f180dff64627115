// openModel() with a GPU: finds the device, and what computes if there is none.

import type { MultiheadError } from '../../runtime/errors.js';
import type { Runtime } from '../../runtime/operands.js';
import type { LoaderInput, OpenLoader, WeightLoader } from '../core/engine.js';
import { CoreLoader } from '../core/loader.js';
import { type GpuPlace, openPlace } from './device.js';
import { GpuLoader } from './weights.js';

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
    else await runtime.loadAnalyses?.(); // it has what only models on a GPU need, too
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
