// The WebAssembly module as Emscripten's glue gives it.

import type { WireFunctions } from './wire.js';

export interface RawModule extends WireFunctions {
  /** Replaced whenever the memory grows. */
  HEAPU8: Uint8Array;
  /** Of a prepared operation, by its handle, on tensors at these addresses; 0 is "not given". Gives a CallStatus. */
  _multihead_run(handle: number, q: number, k: number, v: number, out: number, lse: number): number;
  /** Of a prepared backward, likewise. The modules of multihead/core have none. */
  _multihead_run_backward(
    ...values: [
      ...[handle: number, q: number, k: number, v: number, out: number, lse: number, dOut: number],
      ...[dQ: number, dK: number, dV: number],
    ]
  ): number;
  /** A trainer's step (`updates` is 1) or a part of one (0), with the arguments in the block. Gives a CallStatus. */
  _multihead_train(handle: number, updates: number): number;
  _multihead_trainer_bytes(handle: number): number;
  /** An experiment's step. Gives a CallStatus. */
  _multihead_experiment_step(handle: number): number;
}
