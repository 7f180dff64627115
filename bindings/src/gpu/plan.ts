// A plan as the core packs it, and the device that it is for: see src/webgpu/plan.h.

import { seedWords } from '../attention/options.js';
import type { GpuDevice } from '../generated/gpu_wire.js';
import type { GpuInfo } from '../types/index.js';

/** Part of a buffer, in words of 4 bytes. Buffers by number: the operands, then the plan's data if it has any, then scratch buffers. */
interface Binding {
  readonly buffer: number;
  readonly firstWord: number;
  readonly words: number;
}

export interface Dispatch {
  readonly kernel: number;
  readonly constants: readonly number[];
  readonly groups: readonly [number, number, number];
  readonly bindings: readonly Binding[];
  readonly parameters: Uint32Array<ArrayBuffer>;
}

export interface Plan {
  readonly data: Uint32Array<ArrayBuffer>;
  /** Words of each scratch buffer. */
  readonly scratch: readonly number[];
  readonly dispatches: readonly Dispatch[];
}

const constantsOfDispatch = 4;

/** Reads a plan, which must be a copy of the core's memory. */
export function readPlan(words: Uint32Array<ArrayBuffer>): Plan {
  let at = 0;
  const take = (count: number): Uint32Array<ArrayBuffer> => words.subarray(at, (at += count));
  const number = (): number => take(1)[0] as number;
  const [ofData, ofScratch, count] = [number(), number(), number()];
  const [data, scratch] = [take(ofData), [...take(ofScratch)]];
  const dispatches = Array.from({ length: count }, (): Dispatch => {
    const kernel = number();
    const constants = [...take(constantsOfDispatch)];
    const groups = [number(), number(), number()] as const;
    const [ofBindings, ofParameters] = [number(), number()];
    const bindings = Array.from({ length: ofBindings }, () => ({ buffer: number(), firstWord: number(), words: number() }));
    return { kernel, constants, groups, bindings, parameters: take(ofParameters) };
  });
  return { data, scratch, dispatches };
}

/** The device as plans depend on it, for calls without operands. */
export function deviceOf({ limits }: GPUDevice, { subgroup, bindingBytes }: GpuInfo): GpuDevice {
  const bytes = seedWords(bindingBytes, 'bindingBytes');
  return { subgroup, bindingBytes: bytes, groups: limits.maxComputeWorkgroupsPerDimension, operands: 0 } as unknown as GpuDevice;
}
