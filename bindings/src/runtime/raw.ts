// The WebAssembly module as Emscripten's glue gives it.

import type { WireFunctions } from '../generated/wire.js';
import type { Int32, Uint32 } from '../types/wire.js';

export interface RawModule extends WireFunctions {
  /** Replaced whenever the memory grows. */
  HEAPU8: Uint8Array;
  /** Returns an address as a signed number, or 0 if no memory is left. */
  _multihead_allocate(bytes: Uint32): number;
  _multihead_release(address: Uint32): void;
  _multihead_attention(): Int32;
  /** Runs a prepared operation on tensors at these addresses; 0 means "not given". Returns a CallStatus. */
  _multihead_run(handle: Int32, q: Uint32, k: Uint32, v: Uint32, out: Uint32, lse: Uint32): Int32;
  /** Runs a prepared backward on tensors at these addresses. The modules of multihead/core lack this function. */
  _multihead_run_backward(
    ...values: [...[handle: Int32, q: Uint32, k: Uint32, v: Uint32, out: Uint32, lse: Uint32, dOut: Uint32], ...[dQ: Uint32, dK: Uint32, dV: Uint32]]
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

/** Functions that the glue's caller can replace. */
export interface ModuleOverrides {
  /** Called by the core in team calls; see pool/shared/team.ts. */
  exchange?(data: number, rows: number, stride: number, bounds: number): number;
  /** Called by the core while a module loads its parameters; see modules/state_dict.ts. */
  readParameter?: ((key: number, first: number, count: number, address: number) => number) | undefined;
  instantiateWasm(imports: WebAssembly.Imports, receive: (instance: WebAssembly.Instance, module: WebAssembly.Module) => void): object;
}

/** Emscripten's glue, the same for the relaxed and the simd128 build. */
export type CreateGlue = (overrides: ModuleOverrides) => Promise<RawModule>;
