// Reads typed arrays by their internal slots, because user code can override their properties and
// prototypes.

type Getter = (this: unknown) => unknown;

const prototype: object = Object.getPrototypeOf(Uint8Array.prototype) as object;
const getter = (name: string | symbol): Getter =>
  Object.getOwnPropertyDescriptor(prototype, name)?.get as Getter;

const nameGetter = getter(Symbol.toStringTag);
const lengthGetter = getter('length');
const bufferGetter = getter('buffer');
const offsetGetter = getter('byteOffset');

export interface TypedArray extends ArrayBufferView {
  readonly length: number;
}

/** Returns the class name of a typed array of any realm; undefined for any other value. */
export const typedArrayName = (data: unknown): string | undefined =>
  nameGetter.call(data) as string | undefined;

/** Number of elements; 0 if the buffer is detached, or was resized to end before the array does. */
export const lengthOf = (data: TypedArray): number => lengthGetter.call(data) as number;

export const bufferOf = (data: TypedArray): ArrayBufferLike =>
  bufferGetter.call(data) as ArrayBufferLike;

export const byteOffsetOf = (data: TypedArray): number => offsetGetter.call(data) as number;

type Class = new (buffer?: ArrayBufferLike, byteOffset?: number, length?: number) => unknown;

/** A new view of the first `length` elements, without overridden properties. It does not grow with its buffer. */
export function pristine<T extends TypedArray>(data: T, length = lengthOf(data)): T {
  const Same = (globalThis as unknown as Record<string, Class>)[typedArrayName(data) as string] as Class;
  // A view of a detached buffer cannot be made, so return a new empty array.
  if (length === 0) return new Same() as T;
  return new Same(bufferOf(data), byteOffsetOf(data), length) as T;
}

/** True if two typed arrays have bytes of one buffer in common. */
export function overlap(a: TypedArray, b: TypedArray): boolean {
  const [one, other] = [pristine(a), pristine(b)];
  const [start, otherStart] = [one.byteOffset, other.byteOffset];
  if (one.buffer !== other.buffer) return false;
  return Math.max(start, otherStart) < Math.min(start + one.byteLength, otherStart + other.byteLength);
}

/**
 * Returns the bits of 16-bit floats, which may be a Float16Array. Node 20 has no such class, so the package names none.
 */
export function bitsOf(data: TypedArray): Uint16Array {
  if (typedArrayName(data) !== 'Float16Array') return data as Uint16Array;
  const length = lengthOf(data);
  return length === 0 ? new Uint16Array() : new Uint16Array(bufferOf(data), byteOffsetOf(data), length);
}

const byteLengthGetter = Object.getOwnPropertyDescriptor(ArrayBuffer.prototype, 'byteLength')
  ?.get as Getter;

/**
 * Returns the first `length` elements of `data`. Another thread may make an array on a shared buffer longer at any
 * time.
 */
export const firstOf = <T extends TypedArray>(data: T, length: number): T =>
  isArrayBuffer(bufferOf(data)) ? data : pristine(data, length);

/** True for an ArrayBuffer of any realm; false for a SharedArrayBuffer. */
export function isArrayBuffer(value: unknown): value is ArrayBuffer {
  try {
    byteLengthGetter.call(value);
    return true;
  } catch {
    return false;
  }
}
