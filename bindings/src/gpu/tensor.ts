// Tensors on a GPU. They own a buffer of the pool, or use one of the caller.

import { disposedError, optionError, shapeError } from '../runtime/errors.js';
import { halfToFloats } from '../runtime/half.js';
import { arrayOf, bytesPerElement, type CleanupRecord } from '../runtime/memory.js';
import { checkChoice, checkCount, type Names, plain, readOptions } from '../runtime/options.js';
import { checkExtents, elements, formatShape } from '../runtime/shape.js';
import { allDTypes, checkShape, describe, inspect, isHalf } from '../runtime/tensor.js';
import type { DataOf, DType, GpuTensor, GpuWrapOptions, Shape } from '../types/index.js';
import type { Extents } from '../types/wire.js';
import { type Storage, usages } from './buffers.js';
import type { Place } from './device.js';
import type { GpuRuntime } from './runtime.js';

/** The private state of a tensor. It must not reference the tensor, or the garbage collector would never free it. */
export class GpuCore<D extends DType = DType> implements CleanupRecord, Place {
  readonly gpu: GpuRuntime;
  readonly dtype: D;
  readonly shape: Extents;
  /** In elements; undefined for a tensor without gaps. */
  readonly strides: readonly number[] | undefined;
  readonly storage: Storage;
  readonly offset: number;
  #disposed = false;

  constructor(gpu: GpuRuntime, dtype: D, shape: Extents, storage: Storage, offset = 0, strides?: readonly number[]) {
    this.gpu = gpu;
    this.dtype = dtype;
    this.shape = Object.freeze([...shape]);
    this.storage = storage;
    this.offset = offset;
    this.strides = strides && Object.freeze([...strides]);
    storage.users += 1;
  }

  get disposed(): boolean {
    return this.#disposed || this.gpu.disposed;
  }

  setDisposed(): void {
    this.#disposed = true;
  }

  what(): string {
    return `a GPU tensor of shape ${formatShape(this.shape)}`;
  }

  free(): void {
    this.gpu.release(this.storage);
  }

  assertLive(argument: string): void {
    if (this.disposed) throw disposedError(argument, 'a tensor', `a disposed one of shape ${formatShape(this.shape)}`);
  }
}

export let gpuCoreOf: {
  <D extends DType>(tensor: WebGpuTensor<D>): GpuCore<D>;
  (value: unknown): GpuCore | undefined;
};

export class WebGpuTensor<D extends DType = DType> implements GpuTensor<D> {
  static {
    gpuCoreOf = ((value: unknown) => (typeof value === 'object' && value !== null && #core in value ? value.#core : undefined)) as typeof gpuCoreOf;
  }

  /** Vue's ref() and reactive() then hold the tensor itself. */
  get __v_skip(): true {
    return true;
  }

  /** Defined on the prototype: see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #core: GpuCore<D>;

  constructor(core: GpuCore<D>) {
    this.#core = core;
    core.gpu.adopt(this, core);
  }

  get shape(): Shape {
    return this.#core.shape;
  }

  get dtype(): D {
    return this.#core.dtype;
  }

  get size(): number {
    return elements(this.#core.shape);
  }

  get buffer(): GPUBuffer {
    this.#core.assertLive('tensor');
    return this.#core.storage.buffer;
  }

  get offset(): number {
    return this.#core.offset;
  }

  get disposed(): boolean {
    return this.#core.disposed;
  }

  async read(): Promise<DataOf<D>> {
    const core = this.#core;
    core.assertLive('tensor');
    const { gpu, dtype, shape, strides } = core;
    const size = elements(shape);
    const Data = arrayOf[dtype] as unknown as new (given: ArrayBuffer | number) => DataOf<D>;
    const stored = strides === undefined ? size : reach(shape, strides);
    const bytes = await gpu.player.read(core, stored * bytesPerElement(dtype));
    const data = new Data(bytes);
    if (strides === undefined || size === 0) return data;
    const dense = new Data(size);
    for (let at = 0; at < size; at += 1) dense[at] = data[placeOf(at, shape, strides)] as number;
    return dense;
  }

  async toFloat32(): Promise<Float32Array> {
    const { dtype } = this.#core;
    const data = await this.read();
    return isHalf(dtype) ? halfToFloats(data as Uint16Array, dtype) : new Float32Array(data);
  }

  dispose(): void {
    const core = this.#core;
    if (core.disposed) return;
    core.setDisposed();
    core.gpu.retire(this, core);
  }

  toJSON(): { dtype: D; shape: Shape } {
    return { dtype: this.dtype, shape: this.shape };
  }

  [inspect](): string {
    const { dtype, shape, disposed } = this.#core;
    return `GpuTensor ${dtype} ${formatShape(shape)}${disposed ? ' disposed' : ''}`;
  }
}

/** Elements from the first to the last one of a tensor with strides. */
function reach(shape: Shape, strides: readonly number[]): number {
  if (elements(shape) === 0) return 0;
  return 1 + shape.reduce((sum, extent, axis) => sum + (extent - 1) * (strides[axis] as number), 0);
}

/** Where the element with a row-major number stands. */
function placeOf(number: number, shape: Shape, strides: readonly number[]): number {
  let rest = number;
  let place = 0;
  for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
    const extent = shape[axis] as number;
    place += (rest % extent) * (strides[axis] as number);
    rest = Math.floor(rest / extent);
  }
  return place;
}

const wrapNames = { dtype: plain, shape: plain, strides: plain, offset: plain } satisfies Names<GpuWrapOptions<DType>>;

/** gpu.wrap(): a tensor in a buffer of the caller. */
export function wrapBuffer(gpu: GpuRuntime, buffer: GPUBuffer, given: GpuWrapOptions<DType>): WebGpuTensor {
  const { dtype: named = 'f32', shape: extents, strides: steps, offset: start } = readOptions(given, wrapNames, 'wrap');
  const { size, usage } = Object(buffer) as Partial<GPUBuffer>;
  if (size === undefined || usage === undefined) throw optionError('buffer', 'a GPUBuffer', describe(buffer));
  if ((usage & usages.storage) === 0) throw optionError('buffer', 'a GPUBuffer with GPUBufferUsage.STORAGE', `one with usage ${usage}`);
  const dtype = checkChoice(named, allDTypes, 'dtype');
  const shape = checkShape(extents, 'shape');
  checkExtents(shape, 'shape');
  const offset = start === undefined ? 0 : checkCount(start, 'offset', 0);
  const alignment = gpu.player.device.limits.minStorageBufferOffsetAlignment;
  if (offset % alignment !== 0) throw optionError('offset', `a multiple of ${alignment}, as the device binds it`, String(offset));
  const strides = steps === undefined ? undefined : checkShape(steps, 'strides');
  if (strides !== undefined && strides.length !== shape.length) throw shapeError('strides', `${shape.length} strides`, formatShape(strides));
  const bytes = (strides === undefined ? elements(shape) : reach(shape, strides)) * bytesPerElement(dtype);
  if (offset + bytes > size) throw shapeError('buffer', `${offset + bytes} bytes for shape ${formatShape(shape)}`, `${size}`);
  const made = Promise.resolve(undefined);
  const storage: Storage = { buffer, bytes: 0, users: 0, made, outcome: made };
  return new WebGpuTensor(new GpuCore(gpu, dtype, shape, storage, offset, strides));
}
