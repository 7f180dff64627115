// The functions of multihead/lab.

import { optionError } from '../runtime/errors.js';
import type { Runtime } from '../runtime/operands.js';
import { describe } from '../runtime/tensor.js';
import { WasmExperiment } from '../training/experiment.js';
import { statisticsOf } from '../training/head_statistics.js';
import type { Experiment, ExperimentOptions, HeadStatistics, HeadStatisticsOptions, Multihead, TensorLike } from '../types/index.js';
import { runtimeOf } from './multihead.js';

/**
 * Makes one of two experiments in which attention heads learn to specialize, ready to be trained with
 * {@link Experiment.step} or `train({ experiment })` of `multihead/training`. Dispose it like a tensor.
 *
 * @throws {MultiheadError} `E_OPTION`, `E_MEMORY`
 */
export function createExperiment(mh: Multihead, options?: ExperimentOptions): Experiment {
  const runtime = ownRuntime(mh);
  return runtime.scopes.track(new WasmExperiment(runtime, options));
}

/**
 * Statistics of the attention weights of each head: their entropy, and how much weight goes to the previous token, to
 * the first token, and to tokens that follow an earlier occurrence of the query's token (induction).
 *
 * @param weights (B, H, N_q, N_k) with N_q ≤ N_k, as a module returns them, or (H, N_q, N_k)
 * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
 */
export function headStatistics(mh: Multihead, weights: TensorLike, options?: HeadStatisticsOptions): HeadStatistics {
  return statisticsOf(ownRuntime(mh), weights, options);
}

/** Throws `E_OPTION` unless load() of this package made the instance. */
function ownRuntime(mh: Multihead): Runtime {
  const runtime = runtimeOf.get(mh);
  if (runtime !== undefined) return runtime;
  const expected = 'an instance that load() of "multihead" made; "multihead/inline" has the functions of multihead/lab itself';
  throw optionError('mh', expected, describe(mh));
}
