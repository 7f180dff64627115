// The core's module that plans for a GPU. It has memory of its own, for arguments and plans; tensors are counted with those of mh.

import wasm from 'built:gpu-wasm';
import { dtypes, stridedRank } from '../generated/tables.js';
import { unpack } from '../load/unpack.js';
import { Arguments } from '../runtime/arguments.js';
import { type GuardedModule, guardModule } from '../runtime/guard.js';
import { type CleanupRecord, Heap } from '../runtime/memory.js';
import type { Runtime } from '../runtime/operands.js';
import type { RawModule } from '../runtime/raw.js';
import type { Operand } from '../types/wire.js';

/** Writes tensors with strides, too, which only a GPU has. */
class StridedArguments extends Arguments {
  override tensor(operand: (Operand & { readonly strides?: readonly number[] }) | undefined): void {
    const { strides } = operand ?? {};
    if (operand === undefined || strides === undefined) {
      super.tensor(operand);
      return;
    }
    this.number(stridedRank + strides.length);
    this.number(operand.address);
    this.number(operand.dtype === 'bool' ? 0 : dtypes[operand.dtype]);
    for (const number of [...operand.shape, ...strides]) this.number(number);
  }
}

/** Who counts objects: those of the planner are caches, whose lengths are in it and whose rows are on the GPU. */
export interface Owners {
  adopt(owner: object, cleanup: CleanupRecord): void;
  retire(owner: object, cleanup: CleanupRecord): void;
}

class PlannerHeap extends Heap {
  readonly #owners: Owners;

  constructor(raw: GuardedModule, { scopes }: Runtime, owners: Owners) {
    super(raw, scopes);
    this.#owners = owners;
  }

  override adopt(owner: object, cleanup: CleanupRecord): void {
    this.#owners.adopt(owner, cleanup);
  }

  override retire(owner: object, cleanup: CleanupRecord): void {
    this.#owners.retire(owner, cleanup);
  }
}

/** Compiles and starts the module. Embind's glue, which the other modules have, would be larger than what it does. */
export async function loadPlanner(): Promise<GuardedModule> {
  const grown = { emscripten_notify_memory_growth: () => {} };
  const { instance } = await WebAssembly.instantiate(await unpack(wasm), { env: grown });
  const { memory, _initialize, multihead_allocate, multihead_release, ...functions } = instance.exports as Record<string, CallableFunction> & {
    memory: WebAssembly.Memory;
  };
  _initialize?.();
  const raw = {
    ...functions,
    get HEAPU8() {
      return new Uint8Array(memory.buffer);
    },
    _multihead_allocate: multihead_allocate,
    _multihead_release: multihead_release,
  };
  return guardModule(raw as unknown as RawModule, () => {});
}

/** A planner's runtime for the GPU of an instance. */
export const plannerRuntime = (raw: GuardedModule, runtime: Runtime, owners: Owners): Runtime => ({
  raw,
  args: new StridedArguments(raw),
  heap: new PlannerHeap(raw, runtime, owners),
  scopes: runtime.scopes,
  moreTables: [],
});
