// What typed arrays are, by their internal slots: own properties and altered prototypes may say anything.

type Getter = (this: unknown) => unknown;

const prototype: object = Object.getPrototypeOf(Uint8Array.prototype) as object;
const getter = (name: string | symbol): Getter =>
  Object.getOwnPropertyDescriptor(prototype, name)?.get as Getter;

const nameGetter = getter(Symbol.toStringTag);
const lengthGetter = getter('length');
const bufferGetter = getter('buffer');
const offsetGetter = getter('byteOffset');

interface TypedArray extends ArrayBufferView {
  readonly length: number;
}

/** The name of its class, or undefined for what is no typed array. It may come from another realm. */
export const typedArrayName = (data: unknown): string | undefined =>
  nameGetter.call(data) as string | undefined;

/** Number of elements; 0 where the buffer is detached, or has shrunk below it. */
export const lengthOf = (data: TypedArray): number => lengthGetter.call(data) as number;

export const bufferOf = (data: TypedArray): ArrayBufferLike =>
  bufferGetter.call(data) as ArrayBufferLike;

export const byteOffsetOf = (data: TypedArray): number => offsetGetter.call(data) as number;

type Class = new (buffer?: ArrayBufferLike, byteOffset?: number, length?: number) => unknown;

/** A view of the same numbers, without what has been done to its properties. */
export function pristine<T extends TypedArray>(data: T): T {
  const Same = (globalThis as unknown as Record<string, Class>)[typedArrayName(data) as string] as Class;
  const length = lengthOf(data);
  // Of a detached buffer there is no view.
  if (length === 0) return new Same() as T;
  return new Same(bufferOf(data), byteOffsetOf(data), length) as T;
}

const byteLengthGetter = Object.getOwnPropertyDescriptor(ArrayBuffer.prototype, 'byteLength')
  ?.get as Getter;

/** Of any realm; no SharedArrayBuffer. */
export function isArrayBuffer(value: unknown): value is ArrayBuffer {
  try {
    byteLengthGetter.call(value);
    return true;
  } catch {
    return false;
  }
}
