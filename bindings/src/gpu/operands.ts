// The inputs and outputs of one call on the GPU. The same readers of options use them as on the CPU: an operand's address is its number
// in the plan, counted from 1, because 0 means "not given". Lists such as lengths stand in the planner's memory.

import { readGpuPlan } from '../generated/gpu_wire.js';
import { optionError, shapeError } from '../runtime/errors.js';
import { bytesPerElement } from '../runtime/memory.js';
import { callWith, checkTensorLike, Operands, sharesMemory } from '../runtime/operands.js';
import { checkExtents, elements, formatShape, type Ranks, sameShape } from '../runtime/shape.js';
import { describe, type WasmTensor } from '../runtime/tensor.js';
import type { DisposableResult, DType, Shape } from '../types/index.js';
import type { Extents, Operand, Uint32 } from '../types/wire.js';
import type { Storage } from './buffers.js';
import { type Plan, readPlan } from './plan.js';
import type { GpuRuntime } from './runtime.js';
import { GpuCore, gpuCoreOf, WebGpuTensor } from './tensor.js';

/** Runs one call. If `body` throws, everything that it allocated is freed. */
export function gpuCall<R>(gpu: GpuRuntime, body: (operands: GpuOperands) => R): R {
  gpu.assertLive();
  return callWith(new GpuOperands(gpu), body);
}

export class GpuOperands extends Operands {
  readonly #gpu: GpuRuntime;
  /** By number. */
  readonly #cores: GpuCore[] = [];
  readonly #inputs: { readonly core: GpuCore; readonly name: string }[] = [];
  readonly #given: { readonly core: GpuCore; readonly name: string }[] = [];
  /** Copies of numbers that were not on the GPU. */
  readonly #copies: GpuCore[] = [];
  #made: WebGpuTensor[] = [];

  constructor(gpu: GpuRuntime) {
    super(gpu.planner);
    this.#gpu = gpu;
  }

  override input<D extends DType>(value: unknown, dtypes: readonly D[], argument: string, ranks?: Ranks): Operand<D> {
    const core = gpuCoreOf(value);
    if (core === undefined) {
      const { dtype, shape, data } = checkTensorLike(value, dtypes, argument, ranks);
      const copy = uploaded(this.#gpu, dtype, shape, data, argument);
      this.#copies.push(copy);
      return this.#operand(copy);
    }
    this.#checkCore(core, dtypes, argument);
    this.#inputs.push({ core, name: argument });
    return this.#operand(core as GpuCore<D>);
  }

  override output<D extends DType>(shape: Shape, dtype: D, argument: string, given?: unknown): WasmTensor<D> {
    checkExtents(shape, argument);
    if (given === undefined) {
      const storage = this.#gpu.allocate(elements(shape) * bytesPerElement(dtype), argument);
      const core = new GpuCore(this.#gpu, dtype, shape, storage);
      const tensor = new WebGpuTensor(core);
      this.#made.push(tensor);
      this.#given.push({ core, name: argument });
      this.#operand(core);
      return tensor as unknown as WasmTensor<D>;
    }
    const core = gpuCoreOf(given);
    if (core === undefined) throw optionError(argument, 'a tensor of the same GPU', describe(given));
    this.#checkCore(core, [dtype], argument);
    for (const { core: other, name } of [...this.#inputs, ...this.#given]) {
      if (other.storage.buffer === core.storage.buffer) throw sharesMemory(argument, name);
    }
    if (!sameShape(core.shape, shape)) throw shapeError(argument, formatShape(shape), formatShape(core.shape));
    this.#given.push({ core, name: argument });
    this.#operand(core);
    return given as WasmTensor<D>;
  }

  override operandOf<D extends DType>(tensor: unknown): Operand<D> | undefined {
    const core = gpuCoreOf(tensor) as GpuCore<D> | undefined;
    return core && asOperand(core, this.#cores.indexOf(core) + 1);
  }

  /** How many there are so far. */
  get count(): Uint32 {
    return this.#cores.length as Uint32;
  }

  /** Memory of a cache, which the call reads or writes. */
  rows<D extends DType>(core: GpuCore<D>): Operand<D> {
    this.#copies.push(core);
    this.#given.push({ core, name: 'cache' });
    return this.#operand(core);
  }

  /** Reads the plan that a function of the core has made. */
  plan(raw: () => number): Plan {
    for (const { core, name } of [...this.#inputs, ...this.#given]) core.assertLive(name);
    this.run(raw as never);
    const { args } = this.#gpu.planner;
    return readPlan(new Uint32Array(readGpuPlan(args.results()).words.buffer as ArrayBuffer));
  }

  /** Makes a plan and plays it. */
  play(raw: () => number): void {
    const plan = this.plan(raw);
    const read = [...this.#inputs.map(({ core }) => core), ...this.#copies];
    const written = this.#given.map(({ core }) => core);
    this.#gpu.player.play(plan, this.#cores, storages(read), storages(written));
  }

  override disposable<R extends object>(result: R): R & DisposableResult {
    const made = this.#made;
    const value = (): void => {
      for (const tensor of made) tensor.dispose();
    };
    return Object.defineProperty(result, Symbol.dispose, { value }) as R & DisposableResult;
  }

  override keepOutputs(): void {
    for (const tensor of this.#made) this.#gpu.scopes.track(tensor);
    this.#made = [];
  }

  override release(): void {
    super.release();
    for (const copy of this.#copies) copy.free();
    for (const tensor of this.#made) tensor.dispose();
  }

  #checkCore<D extends DType>(core: GpuCore, dtypes: readonly D[], argument: string): void {
    if (core.gpu !== this.#gpu) throw optionError(argument, 'a tensor of the same GPU', 'one of another');
    core.assertLive(argument);
    if (dtypes.includes(core.dtype as D)) return;
    throw optionError(argument, `a tensor of dtype ${dtypes.map((dtype) => `"${dtype}"`).join(' or ')}`, `"${core.dtype}"`);
  }

  #operand<D extends DType>(core: GpuCore<D>): Operand<D> {
    return asOperand(core, this.#cores.push(core));
  }
}

const storages = (cores: readonly GpuCore[]): Storage[] => cores.map(({ storage }) => storage);

const asOperand = <D extends DType>({ dtype, shape, strides }: GpuCore<D>, number: number): Operand<D> => ({
  address: number as Uint32,
  dtype,
  shape,
  ...(strides && { strides }),
});

/** Copies numbers to the GPU. */
export function uploaded<D extends DType>(gpu: GpuRuntime, dtype: D, shape: Extents, data: ArrayBufferView, argument: string): GpuCore<D> {
  const storage = gpu.allocate(data.byteLength, argument);
  gpu.player.write(storage.buffer, data);
  return new GpuCore(gpu, dtype, shape, storage);
}
