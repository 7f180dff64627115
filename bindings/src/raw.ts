// Interface of the WebAssembly module that Emscripten's glue returns.

import type { Int32, Uint32 } from './arguments.js';
import type { WireFunctions } from './wire.js';

export interface RawModule extends WireFunctions {
  /** Replaced whenever the memory grows. */
  HEAPU8: Uint8Array;
  /** Runs a prepared operation on tensors at these addresses; 0 means "not given". Returns a CallStatus. */
  _multihead_run(handle: Int32, q: Uint32, k: Uint32, v: Uint32, out: Uint32, lse: Uint32): Int32;
  /** Runs a prepared backward on tensors at these addresses. The modules of multihead/core lack this function. */
  _multihead_run_backward(
    ...values: [
      ...[handle: Int32, q: Uint32, k: Uint32, v: Uint32, out: Uint32, lse: Uint32, dOut: Uint32],
      ...[dQ: Uint32, dK: Uint32, dV: Uint32],
    ]
  ): Int32;
  /**
   * Runs a trainer's step (`updates` is 1) or accumulates a part of one (0); arguments are in the block. Returns a
   * CallStatus.
   */
  _multihead_train(handle: Int32, updates: 0 | 1): Int32;
  _multihead_trainer_bytes(handle: Int32): number;
  /** Runs an experiment's step. Returns a CallStatus. */
  _multihead_experiment_step(handle: Int32): Int32;
}
