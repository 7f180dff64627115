// Tensors in WebAssembly memory, and the checks of what is to become one.

import { MultiheadError } from './errors.js';
import { halfToFloats, roundToHalf } from './half.js';
import { bytesPerElement, type Block, type Heap, type Holding } from './memory.js';
import type { DataOf, DType, FloatDType, HalfDType, Shape, Tensor } from './types.js';

/** How many axes a shape may have. */
export interface Ranks {
  readonly least: number;
  readonly most: number;
}

/** Of what calls compute with. */
const tensorRanks: Ranks = { least: 1, most: 4 };

/** Of what can be named in a state dict, if only to be refused: any tensor of the core. */
export const parameterRanks: Ranks = { least: 0, most: 8 };

/** The core's calls count in 32-bit integers. */
export const maxExtent = 2 ** 31 - 1;

export const floatDTypes: readonly FloatDType[] = ['f32', 'f16', 'bf16'];
export const allDTypes: readonly DType[] = [...floatDTypes, 'bool'];

export const isHalf = (dtype: unknown): dtype is HalfDType => dtype === 'f16' || dtype === 'bf16';

/** "(1, 12, 1024, 64)", the way error messages write it. */
export const formatShape = (shape: Shape): string => `(${shape.join(', ')})`;

export function sameShape(a: Shape, b: Shape): boolean {
  if (a.length !== b.length) return false;
  for (let axis = 0; axis < a.length; axis += 1) if (a[axis] !== b[axis]) return false;
  return true;
}

export const elements = (shape: Shape): number =>
  shape.reduce((product, extent) => product * extent, 1);

/** For error messages: what a value of the wrong type is. */
export function describe(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return `an array of ${value.length} (number[] is never converted)`;
  if (typeof value === 'string') return JSON.stringify(value);
  if (typeof value === 'object') return `a ${value.constructor?.name ?? 'null-prototype object'}`;
  if (typeof value === 'function') return 'a function';
  return String(value);
}

/** A copy of a valid shape; throws `E_SHAPE` in the name of `argument`. */
export function checkShape(
  shape: unknown,
  argument: string,
  { least, most }: Ranks = tensorRanks,
): number[] {
  if (!Array.isArray(shape)) {
    throw new MultiheadError('E_SHAPE', {
      argument,
      expected: 'an array of extents',
      got: describe(shape),
    });
  }
  // Array.from turns holes into undefined, which the test below then sees.
  const extents: unknown[] = Array.from(shape);
  const valid = extents.every(
    (extent): extent is number => Number.isSafeInteger(extent) && (extent as number) >= 0,
  );
  if (!valid || extents.length < least || extents.length > most) {
    throw new MultiheadError('E_SHAPE', {
      argument,
      expected: `${least} to ${most} extents that are whole numbers ≥ 0`,
      got: formatShape(extents.map(String) as unknown as Shape),
    });
  }
  return extents as number[];
}

/** The name of a typed array's class, or undefined. By its tag, because arrays may come from another realm. */
export function typedArrayName(data: unknown): string | undefined {
  if (!ArrayBuffer.isView(data)) return undefined;
  return Object.prototype.toString.call(data).slice('[object '.length, -1);
}

/** The dtype of what `data` holds; `stated` decides which half-precision floats 16 bits are. */
function dtypeOf(data: unknown, stated: unknown): DType | undefined {
  const name = typedArrayName(data);
  if (name === 'Float32Array') return 'f32';
  if (name === 'Uint8Array') return 'bool';
  return name === 'Uint16Array' && isHalf(stated) ? stated : undefined;
}

/** "a Float32Array or a Uint16Array with dtype "f16" or "bf16"". */
function typedArraysOf(dtypes: readonly DType[]): string {
  const halves = dtypes.filter(isHalf).map((dtype) => `"${dtype}"`);
  return [
    ...(dtypes.includes('f32') ? ['a Float32Array'] : []),
    ...(dtypes.includes('bool') ? ['a Uint8Array (0 = false)'] : []),
    ...(halves.length > 0 ? [`a Uint16Array with dtype ${halves.join(' or ')}`] : []),
  ].join(' or ');
}

/**
 * Throws `E_OPTION` for another type than those `wanted` or than the dtype `stated` beside it, if
 * one is; `E_SHAPE` for a wrong length.
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
    const beside = stated === undefined ? '' : ` with dtype ${describe(stated)}`;
    const without = typedArrayName(data) === 'Uint16Array' ? ' without a dtype' : '';
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: typedArraysOf(wanted),
      got: describe(data) + (beside || without),
    });
  }
  const typed = data as DataOf<D>;
  const size = elements(shape);
  if (typed.length !== size) {
    const detached = typed.buffer.byteLength === 0 ? ' (detached? read tensor.data anew)' : '';
    throw new MultiheadError('E_SHAPE', {
      argument,
      expected: `${size} elements for shape ${formatShape(shape)}`,
      got: `${typed.length}${detached}`,
    });
  }
  return { dtype: dtype as D, data: typed };
}

/** Throws `E_OPTION` unless it is a dtype or undefined. */
function checkDType(dtype: unknown): DType | undefined {
  if (dtype === undefined || allDTypes.includes(dtype as DType)) return dtype as DType | undefined;
  throw new MultiheadError('E_OPTION', {
    argument: 'dtype',
    expected: allDTypes.map((name) => `"${name}"`).join(', '),
    got: describe(dtype),
  });
}

/** What mh.tensor() makes. */
export function makeTensor(heap: Heap, shape: unknown, data: unknown, stated: unknown): WasmTensor {
  const extents = checkShape(shape, 'shape');
  const dtype = checkDType(stated);
  if (data === undefined) {
    const zeros = WasmTensor.allocate(heap, dtype ?? 'f32', extents, 'tensor');
    zeros.data.fill(0);
    return zeros;
  }
  if (isHalf(dtype) && typedArrayName(data) === 'Float32Array') {
    const floats = checkData(data, extents, ['f32'], 'data').data;
    return WasmTensor.copy(heap, dtype, extents, roundToHalf(floats, dtype), 'tensor');
  }
  const wanted = dtype === undefined ? allDTypes : [dtype];
  const checked = checkData(data, extents, wanted, 'data', dtype);
  return WasmTensor.copy(heap, checked.dtype, extents, checked.data, 'tensor');
}

/** Keeps a tensor alive, and its memory allocated, as long as its view is in use. */
const owners = new WeakMap<object, WasmTensor>();

export class WasmTensor<D extends DType = DType> implements Tensor<D> {
  readonly shape: Shape;
  readonly dtype: D;
  readonly size: number;
  /** Defined on the prototype by load(): see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #heap: Heap;
  readonly #block: Block;
  readonly #holding: Holding;
  #view: DataOf<D> | undefined;
  #disposed = false;

  private constructor(heap: Heap, dtype: D, shape: Shape, block: Block) {
    this.#heap = heap;
    this.#block = block;
    this.dtype = dtype;
    this.shape = Object.freeze([...shape]);
    this.size = elements(shape);
    this.#holding = {
      what: () => `a tensor of shape ${formatShape(shape)}`,
      free: () => heap.release(block),
    };
    heap.adopt(this, this.#holding);
  }

  /** The memory is not cleared. `shape` has been checked. */
  static allocate<D extends DType>(
    heap: Heap,
    dtype: D,
    shape: Shape,
    argument: string,
  ): WasmTensor<D> {
    const block = heap.allocate(elements(shape) * bytesPerElement(dtype), argument);
    return new WasmTensor(heap, dtype, shape, block);
  }

  /** `data` and `shape` have been checked. */
  static copy<D extends DType>(
    heap: Heap,
    dtype: D,
    shape: Shape,
    data: DataOf<D>,
    argument: string,
  ): WasmTensor<D> {
    return new WasmTensor(heap, dtype, shape, heap.allocateCopy(dtype, data, argument));
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  /** Where its numbers lie, while it is live. */
  get address(): number {
    return this.#block.address;
  }

  get data(): DataOf<D> {
    this.assertLive('tensor');
    // A buffer that the memory has outgrown is another object than the present one.
    if (this.#view?.buffer !== this.#heap.buffer) {
      this.#view = this.#heap.view<DType>(this.dtype, this.#block.address, this.size) as DataOf<D>;
      owners.set(this.#view, this);
    }
    return this.#view;
  }

  toFloat32(): Float32Array {
    const { data } = this;
    return isHalf(this.dtype)
      ? halfToFloats(data as Uint16Array, this.dtype)
      : Float32Array.from(data);
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#view = undefined;
    this.#heap.retire(this, this.#holding);
  }

  livesIn(heap: Heap): boolean {
    return this.#heap === heap;
  }

  assertLive(argument: string): void {
    if (!this.#disposed) return;
    throw new MultiheadError('E_DISPOSED', {
      argument,
      expected: 'a tensor that is not disposed',
      got: `a disposed one of shape ${formatShape(this.shape)}`,
    });
  }
}
