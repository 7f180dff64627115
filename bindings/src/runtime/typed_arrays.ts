// Checks and views of typed arrays, also of typed arrays that an iframe made.

export interface TypedArray extends ArrayBufferView {
  readonly length: number;
}

/** Returns the class name of a typed array; undefined for any other value, also for a proxy of one. */
export const typedArrayName = (data: unknown): string | undefined =>
  ArrayBuffer.isView(data) && !(data instanceof DataView) ? (data as Uint8Array)[Symbol.toStringTag] : undefined;

const prototype: object = Object.getPrototypeOf(Uint8Array.prototype) as object;
const lengthGetter = Object.getOwnPropertyDescriptor(prototype, 'length')?.get as (this: unknown) => number;

/**
 * Number of elements; 0 if the buffer is detached, or was resized to end before the array does. By the getter itself: with
 * `data.length` in Node 20, a detached array passed the checks as if it still had its elements (hostile.test.ts, seed 907596).
 */
export const lengthOf = (data: TypedArray): number => lengthGetter.call(data);

type Class = new (buffer?: ArrayBufferLike, byteOffset?: number, length?: number) => unknown;

/**
 * A new view of the first `length` elements. It does not grow with its buffer, and is no Buffer of Node, whose slice() copies
 * nothing.
 */
export function pristine<T extends TypedArray>(data: T, length = lengthOf(data)): T {
  const Same = (globalThis as unknown as Record<string, Class>)[typedArrayName(data) as string] as Class;
  // A view of a detached buffer cannot be made, so return a new empty array.
  if (length === 0) return new Same() as T;
  return new Same(data.buffer, data.byteOffset, length) as T;
}

/** True if two typed arrays have bytes of one buffer in common. */
export function overlap(a: TypedArray, b: TypedArray): boolean {
  if (a.buffer !== b.buffer) return false;
  return Math.max(a.byteOffset, b.byteOffset) < Math.min(a.byteOffset + a.byteLength, b.byteOffset + b.byteLength);
}

/**
 * Returns the bits of 16-bit floats, which may be a Float16Array. Node 20 has no such class, so the package names none.
 */
export function bitsOf(data: TypedArray): Uint16Array {
  if (typedArrayName(data) !== 'Float16Array') return data as Uint16Array;
  const length = lengthOf(data);
  return length === 0 ? new Uint16Array() : new Uint16Array(data.buffer, data.byteOffset, length);
}

/**
 * Returns the first `length` elements of `data`. Another thread may make an array on a shared buffer longer at any
 * time.
 */
export const firstOf = <T extends TypedArray>(data: T, length: number): T => (isArrayBuffer(data.buffer) ? data : pristine(data, length));

/** True for an ArrayBuffer; false for a SharedArrayBuffer. */
export const isArrayBuffer = (value: unknown): value is ArrayBuffer => Object.prototype.toString.call(value) === '[object ArrayBuffer]';
