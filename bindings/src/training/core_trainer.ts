// Base class of trainers and experiments: a handle to a trainer in the core, and the state that continues a training.

import { pushStateDict, takeStateDict } from '../modules/state_dict.js';
import { CoreObject, type ObjectName } from '../runtime/core_object.js';
import { optionError } from '../runtime/errors.js';
import { halfToFloats } from '../runtime/half.js';
import type { CleanupRecord, SharedParameters } from '../runtime/memory.js';
import { call, type Runtime } from '../runtime/operands.js';
import { elements } from '../runtime/shape.js';
import { isHalf } from '../runtime/tensor.js';
import { readSafetensors } from '../safetensors/read.js';
import { writeSafetensors } from '../safetensors/write.js';
import type { PlainTensor, StateDict } from '../types/index.js';
import type { Int32, Operand } from '../types/wire.js';

/** Cleanup record of a trainer in the core. It must not reference its owner, or the owner would never be collected. */
export class TrainerMemory implements CleanupRecord {
  readonly parameters: SharedParameters;
  protected readonly runtime: Runtime;
  readonly #trainer: Int32;
  readonly #name: ObjectName;
  readonly #release: () => void;
  readonly #more: number;
  /** Bytes in the core without the parameters, at the last recount(). */
  #counted = 0;

  /** `release` frees the trainer in the core. `more`: bytes that the owner holds in addition. */
  constructor(runtime: Runtime, trainer: Int32, parameters: SharedParameters, name: ObjectName, release: () => void, more = 0) {
    this.runtime = runtime;
    this.parameters = parameters.join();
    this.#trainer = trainer;
    this.#name = name;
    this.#release = release;
    this.#more = more;
    this.recount();
  }

  get bytes(): number {
    return this.parameters.bytes + this.#counted;
  }

  /** Call this after calls that may have allocated memory in the core. */
  recount(): void {
    const { raw, heap } = this.runtime;
    const trainer = raw._multihead_trainer_bytes(this.#trainer);
    const bytes = trainer + this.#more - this.parameters.bytes;
    if (bytes !== this.#counted) heap.count(bytes - this.#counted);
    this.#counted = bytes;
  }

  what(): string {
    return `${this.#name.noun} of ${this.bytes} bytes`;
  }

  free(): void {
    this.#release();
    this.runtime.heap.count(-this.#counted);
    this.parameters.leave();
  }
}

/**
 * An option that must be equal in a state and in the object that restores it. Parameter shapes may not reveal a
 * mismatch.
 */
export interface KeptOption {
  /** Name of the option's tensor in a state dict; `multihead-train` uses the same name. */
  readonly tensor: string;
  readonly option: string;
  readonly value: number;
  /** The option's value that this number stands for. */
  readonly shown: (value: number) => string;
}

export abstract class CoreTrainer extends CoreObject {
  readonly #trainer: Int32;
  readonly #memory: TrainerMemory;
  readonly #kept: readonly KeptOption[];

  /** `handle`: the object in the core. `trainer`: its trainer in the core. */
  constructor(runtime: Runtime, handle: Int32, trainer: Int32, name: ObjectName, memory: TrainerMemory, kept: readonly KeptOption[] = []) {
    super(runtime, handle, name, memory);
    this.#trainer = trainer;
    this.#memory = memory;
    this.#kept = kept;
  }

  steps(): number {
    this.assertLive();
    return this.runtime.raw.trainerSteps(this.#trainer);
  }

  bytes(): number {
    this.assertLive();
    return this.#memory.bytes;
  }

  stateDict(): Record<string, PlainTensor> {
    this.simply((raw) => raw.trainerState(this.#trainer));
    const state = takeStateDict(this.runtime);
    for (const { tensor, value } of this.#kept) {
      state[tensor] = { shape: [1], data: Float32Array.of(value) };
    }
    return state;
  }

  loadStateDict(dict: StateDict): void {
    this.assertLive();
    const { runtime } = this;
    call(runtime, (operands) => {
      pushStateDict(runtime, dict, operands, (copies) => {
        for (const { tensor, option, value, shown } of this.#kept) {
          const found = firstNumber(copies.get(tensor), runtime) ?? value; // a state without the option passes
          if (found !== value) throw optionError(option, `${shown(found)}, as in the state`, shown(value));
        }
      });
      operands.run((raw) => raw.trainerLoad(this.#trainer));
    });
  }

  checkpoint(): Uint8Array<ArrayBuffer> {
    return writeSafetensors(this.stateDict());
  }

  restore(checkpoint: Uint8Array | ArrayBuffer): void {
    this.assertLive();
    this.loadStateDict(readSafetensors(checkpoint).stateDict);
  }

  /** Calls the core without arguments in the block. Throws `E_DISPOSED`. */
  protected simply(run: (raw: Runtime['raw']) => Int32): void {
    this.assertLive();
    call(this.runtime, (operands) => operands.run(run));
  }
}

/** Reads the first number of a tensor in the core's memory; undefined if it has none. */
function firstNumber(copy: Operand | undefined, { heap }: Runtime): number | undefined {
  if (copy === undefined || elements(copy.shape) === 0) return undefined;
  const { dtype, address } = copy;
  const view = heap.view(dtype, address, 1);
  return (isHalf(dtype) ? halfToFloats(view as Uint16Array, dtype) : view)[0];
}
