// Tensors in WebAssembly memory, and the checks of what is to become one.

import { MultiheadError } from './errors.js';
import type { Block, Heap } from './memory.js';
import type { Quad, TensorArg } from './raw.js';
import type { DataOf, DType, Shape, Tensor } from './types.js';

/** A table entry of the Embind module has room for this many axes. */
const maxRank = 4;

/** The core's calls count in 32-bit integers. */
export const maxExtent = 2 ** 31 - 1;

const bytesPerElement: Record<DType, number> = { f32: 4, bool: 1 };

/** "(1, 12, 1024, 64)", the way error messages write it. */
export const formatShape = (shape: Shape): string => `(${shape.join(', ')})`;

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
export function checkShape(shape: unknown, argument: string): number[] {
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
  if (!valid || extents.length === 0 || extents.length > maxRank) {
    throw new MultiheadError('E_SHAPE', {
      argument,
      expected: `1 to ${maxRank} extents that are whole numbers ≥ 0`,
      got: formatShape(extents.map(String) as unknown as Shape),
    });
  }
  return extents as number[];
}

/** The dtype of a typed array. By its tag, because arrays may come from another realm. */
function dtypeOf(data: unknown): DType | undefined {
  if (!ArrayBuffer.isView(data)) return undefined;
  const tag = Object.prototype.toString.call(data);
  if (tag === '[object Float32Array]') return 'f32';
  return tag === '[object Uint8Array]' ? 'bool' : undefined;
}

const typedArrayOf: Record<DType, string> = {
  f32: 'a Float32Array',
  bool: 'a Uint8Array (0 = false)',
};

/** Throws `E_OPTION` for another type than the one `wanted`, `E_SHAPE` for a wrong length. */
export function checkData<D extends DType>(
  data: unknown,
  shape: Shape,
  wanted: readonly D[],
  argument: string,
): { dtype: D; data: DataOf<D> } {
  const dtype = dtypeOf(data);
  if (dtype === undefined || !wanted.includes(dtype as D)) {
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: wanted.map((each) => typedArrayOf[each]).join(' or '),
      got: describe(data),
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

export function quad(values: Shape): Quad {
  return [values[0] ?? 0, values[1] ?? 0, values[2] ?? 0, values[3] ?? 0];
}

export function tensorArg(address: number, shape: Shape): TensorArg {
  const strides = new Array<number>(shape.length);
  let step = 1;
  for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
    strides[axis] = step;
    step *= shape[axis] ?? 0;
  }
  return { data: address, rank: shape.length, shape: quad(shape), strides: quad(strides) };
}

export const notGiven: TensorArg = { data: 0, rank: 0, shape: [0, 0, 0, 0], strides: [0, 0, 0, 0] };

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
  #view: DataOf<D> | undefined;
  #disposed = false;

  private constructor(heap: Heap, dtype: D, shape: Shape, block: Block) {
    this.#heap = heap;
    this.#block = block;
    this.dtype = dtype;
    this.shape = Object.freeze([...shape]);
    this.size = elements(shape);
    heap.adopt(this, block, formatShape(shape));
  }

  /** The memory is not cleared. `shape` has been checked. */
  static allocate<D extends DType>(
    heap: Heap,
    dtype: D,
    shape: Shape,
    argument: string,
  ): WasmTensor<D> {
    const block = heap.allocate(elements(shape) * bytesPerElement[dtype], argument);
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

  get data(): DataOf<D> {
    this.assertLive('tensor');
    // A buffer that the memory has outgrown is another object than the present one.
    if (this.#view?.buffer !== this.#heap.buffer) {
      this.#view = this.#heap.view(this.dtype, this.#block.address, this.size);
      owners.set(this.#view, this);
    }
    return this.#view as DataOf<D>;
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#view = undefined;
    this.#heap.retire(this, this.#block);
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

  /** `shape` may regroup the axes; its product must be the tensor's size. */
  arg(shape: Shape = this.shape): TensorArg {
    return tensorArg(this.#block.address, shape);
  }
}
