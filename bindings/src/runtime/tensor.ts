// Tensors in WebAssembly memory, and the checks of shapes, dtypes and data.

import type { DataOf, DType, FloatDType, HalfDType, Shape, Tensor } from '../types/index.js';
import type { Extents, Operand, Uint32 } from '../types/wire.js';
import { disposedError, type MultiheadError, optionError, shapeError } from './errors.js';
import { halfToFloats, roundDoublesToHalf, roundToHalf } from './half.js';
import { type Block, bytesPerElement, type Heap, type CleanupRecord, onJavaScriptHeap } from './memory.js';
import { checkExtents, elements, formatShape, type Ranks } from './shape.js';
import { quoted } from './text.js';
import { bitsOf, lengthOf, pristine, type TypedArray, typedArrayName } from './typed_arrays.js';

/** Allowed numbers of axes for operands of calls. */
const tensorRanks: Ranks = { least: 1, most: 4 };

export const floatDTypes: readonly FloatDType[] = ['f32', 'f16', 'bf16'];
export const allDTypes: readonly DType[] = [...floatDTypes, 'bool'];

export const isHalf = (dtype: unknown): dtype is HalfDType => dtype === 'f16' || dtype === 'bf16';

/** A short description of a value of the wrong type, for error messages. */
export function describe(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'string') return quoted(value);
  if (coreOf(value) !== undefined) return 'a tensor';
  if (isProxyOfTensor(value)) return 'a proxy of a tensor (in Vue: toRaw() or markRaw())';
  if (typeof value === 'object') return nouns.get(value) ?? `a ${className(value)}`;
  if (typeof value === 'function') return 'a function';
  return typeof value === 'bigint' ? `${value}n` : String(value);
}

/** describe(), for an argument whose data may not be a number[]. */
export function describeData(value: unknown): string {
  const text = describe(value);
  return text.startsWith('an array of ') ? `${text} (only mh.tensor() takes number[])` : text;
}

function className(value: object): string {
  const name: unknown = value.constructor?.name;
  if (typeof name !== 'string') return 'null-prototype object';
  return /^(Uint|Int|Float)\d/.test(name) && !ArrayBuffer.isView(value) ? `proxy of a ${name}` : name;
}

/**
 * The descriptions of objects of the package, such as "a cache", because a bundler shortens the names of their classes, and
 * of their copies in workers.
 */
export const nouns = new WeakMap<object, string>();

/** Name of the method from which console.log() in Node, Deno and Bun has the text for an object. */
export const inspect: unique symbol = Symbol.for('nodejs.util.inspect.custom') as never;

/** Describes an object of the package in error messages, and lets console.log() show the same. */
export function nameObject(object: object, noun: string): void {
  nouns.set(object, noun);
  Object.defineProperty(object, inspect, { value: () => noun });
}

/** Maximum numbers of a tensor that console.log() shows. */
const mostShown = 6;

/** A copy of a valid shape; throws `E_SHAPE` for `argument`. */
export function checkShape(shape: unknown, argument: string, { least, most }: Ranks = tensorRanks): number[] {
  // A huge array costs nothing.
  const extents: unknown[] | undefined = Array.isArray(shape) ? shape.slice(0, most + 1) : undefined;
  if (extents === undefined) {
    throw shapeError(argument, argument === 'shape' ? 'an array of extents, as in mh.tensor(data, shape)' : 'an array of extents', describe(shape));
  }
  let valid = extents.length >= least && extents.length <= most;
  for (const extent of extents) valid &&= Number.isSafeInteger(extent) && (extent as number) >= 0;
  if (!valid) {
    throw shapeError(argument, `${least} to ${most} extents that are whole numbers ≥ 0`, `(${extents.map(describe).join(', ')})`);
  }
  return extents as number[];
}

/**
 * Returns the dtype of a typed array. For a Uint16Array, returns `stated`, which must be 'f16' or 'bf16'. A
 * Float16Array is f16.
 */
function dtypeOf(data: unknown, stated: unknown): DType | undefined {
  const name = typedArrayName(data);
  if (name === 'Float32Array') return 'f32';
  if (name === 'Float16Array') return 'f16';
  if (name === 'Uint8Array') return 'bool';
  return name === 'Uint16Array' && isHalf(stated) ? stated : undefined;
}

/** Lists the accepted typed arrays: "a Float32Array or a Uint16Array with dtype "f16" or "bf16"". */
function typedArraysOf(dtypes: readonly DType[]): string {
  const halves = dtypes.filter(isHalf).map((dtype) => `"${dtype}"`);
  return [
    ...(dtypes.includes('f32') ? ['a Float32Array'] : []),
    ...(dtypes.includes('bool') ? ['a Uint8Array (0 = false)'] : []),
    ...(halves.length > 0 ? [`a Uint16Array with dtype ${halves.join(' or ')}`] : []),
  ].join(' or ');
}

/**
 * Throws `E_OPTION` if `data` has none of the `wanted` dtypes, or contradicts the dtype `stated` with
 * it; `E_SHAPE` for a wrong length.
 */
export function checkData<D extends DType>(
  data: unknown,
  shape: Shape,
  wanted: readonly D[],
  argument: string,
  stated?: unknown,
): { dtype: D; data: DataOf<D> } {
  const dtype = dtypeOf(data, stated);
  const contradiction = dtype !== stated && allDTypes.includes(stated as DType);
  if (dtype === undefined || contradiction || !wanted.includes(dtype as D)) {
    const withDtype = stated === undefined ? '' : ` with dtype ${describe(stated)}`;
    const without = typedArrayName(data) === 'Uint16Array' ? ' without a dtype' : '';
    throw optionError(argument, typedArraysOf(wanted), describeData(data) + (withDtype || without));
  }
  const typed = data as DataOf<D>;
  const size = elements(shape);
  const length = lengthOf(typed);
  if (length !== size) {
    const detached = typed.buffer.byteLength === 0 ? ' (detached: it was transferred, or tensor.data must be read anew)' : '';
    throw wrongLength(argument, shape, `${length}${detached}`);
  }
  return { dtype: dtype as D, data: dtype === 'f16' ? (bitsOf(typed) as DataOf<D>) : typed };
}

const wrongLength = (argument: string, shape: Shape, got: string): MultiheadError =>
  shapeError(argument, `${elements(shape)} elements for shape ${formatShape(shape)}`, got);

/** Throws `E_OPTION` unless `dtype` is a dtype or undefined. */
function checkDType(dtype: unknown): DType | undefined {
  if (dtype === undefined || allDTypes.includes(dtype as DType)) return dtype as DType | undefined;
  throw optionError('dtype', allDTypes.map((name) => `"${name}"`).join(', '), describe(dtype));
}

/** mh.zeros(). */
export function makeZeros(heap: Heap, shape: unknown, stated: unknown): WasmTensor {
  const extents = checkShape(shape, 'shape');
  const dtype = checkDType(stated) ?? 'f32';
  checkExtents(extents, 'shape');
  const zeros = WasmTensor.allocate(heap, dtype, extents, 'zeros');
  // The core, because reading `data` would keep the memory reachable after mh.dispose().
  coreOf(zeros)?.view().fill(0);
  return zeros;
}

/** mh.tensor(). */
export function makeTensor(heap: Heap, data: unknown, shape: unknown, stated: unknown): WasmTensor {
  const [flat, extents] = shape === undefined ? flattened(data) : [data, checkShape(shape, 'shape')];
  const dtype = checkDType(stated);
  checkExtents(extents, 'shape');
  const numbers = readNumbers(flat, extents);
  if (numbers !== undefined) {
    return WasmTensor.copy(heap, dtype ?? 'f32', extents, storedAs(numbers, dtype ?? 'f32'), 'tensor');
  }
  if (isHalf(dtype) && typedArrayName(data) === 'Float32Array') {
    const floats = checkData(data, extents, ['f32'], 'data').data;
    const bytes = 2 * elements(extents);
    const halves = onJavaScriptHeap(bytes, 'tensor', () => roundToHalf(pristine(floats, elements(extents)), dtype));
    return WasmTensor.copy(heap, dtype, extents, halves, 'tensor');
  }
  const wanted = dtype === undefined ? allDTypes : [dtype];
  const checked = checkData(data, extents, wanted, 'data', dtype);
  return WasmTensor.copy(heap, checked.dtype, extents, checked.data, 'tensor');
}

/** True for arrays in arrays that have these lengths. */
const hasLengths = (data: unknown, [length, ...inner]: Shape): boolean =>
  Array.isArray(data) && data.length === length && (inner.length === 0 || data.every((each) => hasLengths(each, inner)));

/** Data that comes without a shape, and its shape: arrays in arrays as one array. Throws `E_SHAPE`. */
export function flattened(data: unknown, argument = 'data'): [flat: unknown, shape: number[]] {
  if (typedArrayName(data) !== undefined) return [data, [(data as TypedArray).length]];
  if (!Array.isArray(data)) return [data, []];
  const lengths: unknown[] = [];
  for (let inner: unknown = data; Array.isArray(inner) && lengths.length < 5; inner = inner[0]) lengths.push(inner.length);
  const shape = checkShape(lengths, argument);
  if (hasLengths(data, shape)) return [data.flat(shape.length - 1), shape];
  throw shapeError(argument, `arrays of equal lengths, ${formatShape(shape)}`, 'others');
}

/**
 * Reads a number[]; undefined for any other value. Throws `E_SHAPE` for another length, and `E_OPTION` for an entry that is
 * not a number.
 */
export function readNumbers(data: unknown, shape: Shape, argument = 'data'): Float64Array | undefined {
  const size = elements(shape);
  if (!Array.isArray(data)) return undefined;
  if (data.length !== size) throw wrongLength(argument, shape, describe(data.length));
  const numbers = onJavaScriptHeap(8 * size, 'tensor', () => new Float64Array(size));
  for (let at = 0; at < size; at += 1) {
    const entry: unknown = data[at];
    if (typeof entry !== 'number') throw optionError(`${argument}[${at}]`, 'a number', describe(entry));
    numbers[at] = entry;
  }
  return numbers;
}

function storedAs(numbers: Float64Array, dtype: DType): DataOf<DType> {
  const bytes = numbers.length * bytesPerElement(dtype);
  return onJavaScriptHeap(bytes, 'tensor', () => {
    if (isHalf(dtype)) return roundDoublesToHalf(numbers, dtype);
    return dtype === 'f32' ? new Float32Array(numbers) : Uint8Array.from(numbers, (number) => (number === 0 ? 0 : 1));
  });
}

/** From views to their tensors: a tensor is not garbage-collected while its view is reachable. */
const owners = new WeakMap<object, WasmTensor>();

/** A block of memory, shared by a tensor and its reshape()s; freed with the last user. */
interface Storage {
  readonly block: Block;
  tensors: number;
}

/**
 * The private state of a {@link WasmTensor}, which a proxy of one lacks. It must not reference its WasmTensor: the finalizer
 * holds it after the WasmTensor was collected.
 */
export class TensorCore<D extends DType = DType> implements Operand<D>, CleanupRecord {
  readonly heap: Heap;
  readonly dtype: D;
  readonly shape: Extents;
  readonly size: number;
  readonly storage: Storage;
  readonly address: Uint32;
  #disposed = false;

  constructor(heap: Heap, dtype: D, shape: Extents, storage: Storage) {
    this.heap = heap;
    this.dtype = dtype;
    this.shape = Object.freeze([...shape]);
    this.size = elements(shape);
    this.storage = storage;
    this.address = storage.block.address;
    storage.tensors += 1;
  }

  get disposed(): boolean {
    return this.#disposed || this.heap.disposed;
  }

  /** Call this once, when the tensor is disposed. */
  setDisposed(): void {
    this.#disposed = true;
  }

  what(): string {
    return `a tensor of shape ${formatShape(this.shape)}`;
  }

  free(): void {
    this.storage.tensors -= 1;
    if (this.storage.tensors === 0) this.heap.release(this.storage.block);
  }

  /** Returns a view of the current memory. */
  view(): DataOf<D> {
    return this.heap.view<DType>(this.dtype, this.address, this.size) as DataOf<D>;
  }

  assertLive(argument: string): void {
    if (this.disposed) throw disposedError(argument, 'a tensor', `a disposed one of shape ${formatShape(this.shape)}`);
  }
}

/** The core of a tensor of any load(); undefined for any other value. */
export let coreOf: {
  <D extends DType>(tensor: WasmTensor<D> | undefined): TensorCore<D> | undefined;
  (value: unknown): TensorCore | undefined;
};

/** True for a proxy of a tensor: it lacks the tensor's private members. */
export const isProxyOfTensor = (value: unknown): boolean => value instanceof WasmTensor && coreOf(value) === undefined;

/** The core of a method's `this`. Throws `E_OPTION` if `this` is a proxy, as in `new Proxy(tensor, {}).data`. */
function ownCore<D extends DType>(tensor: WasmTensor<D>): TensorCore<D> {
  const core = coreOf(tensor);
  if (core !== undefined) return core as TensorCore<D>;
  throw optionError('tensor', 'a tensor itself', describe(tensor));
}

export class WasmTensor<D extends DType = DType> implements Tensor<D> {
  static {
    coreOf = ((value: unknown) => (typeof value === 'object' && value !== null && #core in value ? value.#core : undefined)) as typeof coreOf;
  }

  /** The flag of Vue's markRaw(): ref() and reactive() then hold the tensor itself, not a proxy. */
  get __v_skip(): true {
    return true;
  }

  /** Defined on the prototype by load(): see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #core: TensorCore<D>;
  #view: DataOf<D> | undefined;

  private constructor(heap: Heap, dtype: D, shape: Extents, storage: Storage) {
    this.#core = new TensorCore(heap, dtype, shape, storage);
    heap.adopt(this, this.#core);
  }

  /** Allocates a tensor without clearing the memory. */
  static allocate<D extends DType>(heap: Heap, dtype: D, shape: Extents, argument: string): WasmTensor<D> {
    const block = heap.allocate(elements(shape) * bytesPerElement(dtype), argument);
    return new WasmTensor(heap, dtype, shape, { block, tensors: 0 });
  }

  /** Copies `data`, which must be valid. */
  static copy<D extends DType>(heap: Heap, dtype: D, shape: Extents, data: DataOf<D>, argument: string): WasmTensor<D> {
    const block = heap.allocateCopy(dtype, data, argument);
    return new WasmTensor(heap, dtype, shape, { block, tensors: 0 });
  }

  /** Makes a tensor in the state after dispose(). */
  static disposed<D extends DType>(heap: Heap, dtype: D, shape: Extents): WasmTensor<D> {
    const tensor = new WasmTensor(heap, dtype, shape, { block: { address: 0, bytes: 0 }, tensors: 0 });
    tensor.dispose();
    return tensor;
  }

  get shape(): Shape {
    return ownCore(this).shape;
  }

  get dtype(): D {
    return ownCore(this).dtype;
  }

  get size(): number {
    return ownCore(this).size;
  }

  get disposed(): boolean {
    return ownCore(this).disposed;
  }

  get data(): DataOf<D> {
    const core = ownCore(this);
    core.assertLive('tensor');
    // When the memory grows, it gets a new buffer object.
    if (this.#view === undefined || this.#view.buffer !== core.heap.buffer) {
      this.#view = core.view();
      owners.set(this.#view, this);
    }
    return this.#view;
  }

  toFloat32(): Float32Array {
    const core = ownCore(this);
    core.assertLive('tensor');
    const { dtype, size } = core;
    return onJavaScriptHeap(4 * size, 'toFloat32', () =>
      isHalf(dtype) ? halfToFloats(core.view() as Uint16Array, dtype) : new Float32Array(core.view()),
    );
  }

  reshape(shape: Shape): WasmTensor<D> {
    const extents = checkShape(shape, 'shape');
    checkExtents(extents, 'shape');
    const core = ownCore(this);
    const { heap, dtype, size, storage } = core;
    if (elements(extents) !== size) {
      throw shapeError('shape', `extents of which the product is ${size}, as of ${formatShape(core.shape)}`, formatShape(extents));
    }
    core.assertLive('tensor');
    heap.assertAlive();
    return heap.scopes.track(new WasmTensor(heap, dtype, extents, storage));
  }

  dispose(): void {
    const core = ownCore(this);
    if (core.disposed) return;
    core.setDisposed();
    this.#view = undefined;
    core.heap.retire(this, core);
  }

  toJSON(): { dtype: D; shape: Shape } {
    const { dtype, shape } = ownCore(this);
    return { dtype, shape };
  }

  [inspect](): string {
    const core = coreOf(this);
    if (core === undefined) return describe(this);
    const { dtype, shape, size, disposed } = core;
    const start = `Tensor ${dtype} ${formatShape(shape)}`;
    if (disposed) return `${start} disposed`;
    const first = core.view().subarray(0, mostShown);
    const numbers = Array.from(isHalf(dtype) ? halfToFloats(first as Uint16Array, dtype) : first, (number) => +number.toPrecision(6));
    return `${start} [${numbers.join(', ')}${size > mostShown ? ', …' : ''}]`;
  }

  assertLive(argument: string): void {
    ownCore(this).assertLive(argument);
  }
}
