// The core's module that plans for a GPU. It has memory of its own, for arguments and plans; tensors are counted with those of mh.

import wasm from 'built:gpu-wasm';
import { dtypes, stridedRank } from '../generated/tables.js';
import { unpack } from '../load/unpack.js';
import { Arguments } from '../runtime/arguments.js';
import { type GuardedModule, guardModule } from '../runtime/guard.js';
import { Heap } from '../runtime/memory.js';
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

/** A planner's runtime for the GPU of an instance. Its objects are caches, whose rows are on the GPU: `owners` counts them. */
export function plannerRuntime(raw: GuardedModule, { scopes }: Runtime, owners: Pick<Heap, 'adopt' | 'retire'>): Runtime {
  const heap = Object.assign(new Heap(raw, scopes), { adopt: owners.adopt.bind(owners), retire: owners.retire.bind(owners) });
  return { raw, args: new StridedArguments(raw), heap, scopes, moreTables: [] };
}
