// The WebAssembly module as Emscripten's glue gives it.

import type { Int32, Uint32 } from './arguments.js';
import type { WireFunctions } from './wire.js';

export interface RawModule extends WireFunctions {
  /** Replaced whenever the memory grows. */
  HEAPU8: Uint8Array;
  /** Of a prepared operation, by its handle, on tensors at these addresses; 0 is "not given". Gives a CallStatus. */
  _multihead_run(handle: Int32, q: Uint32, k: Uint32, v: Uint32, out: Uint32, lse: Uint32): Int32;
  /** Of a prepared backward, likewise. The modules of multihead/core have none. */
  _multihead_run_backward(
    ...values: [
      ...[handle: Int32, q: Uint32, k: Uint32, v: Uint32, out: Uint32, lse: Uint32, dOut: Uint32],
      ...[dQ: Uint32, dK: Uint32, dV: Uint32],
    ]
  ): Int32;
  /** A trainer's step (`updates` is 1) or a part of one (0), with the arguments in the block. Gives a CallStatus. */
  _multihead_train(handle: Int32, updates: 0 | 1): Int32;
  _multihead_trainer_bytes(handle: Int32): number;
  /** An experiment's step. Gives a CallStatus. */
  _multihead_experiment_step(handle: Int32): Int32;
}
