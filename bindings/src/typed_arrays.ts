// What typed arrays are, by their internal slots: own properties and altered prototypes may say anything.

type Getter = (this: unknown) => unknown;

const prototype: object = Object.getPrototypeOf(Uint8Array.prototype) as object;
const getter = (name: string | symbol): Getter =>
  Object.getOwnPropertyDescriptor(prototype, name)?.get as Getter;

const nameGetter = getter(Symbol.toStringTag);
const lengthGetter = getter('length');
const bufferGetter = getter('buffer');
const offsetGetter = getter('byteOffset');

export type AnyTypedArray = Float32Array | Uint8Array | Uint16Array | Int32Array;

/** The name of its class, or undefined for what is no typed array. It may come from another realm. */
export const typedArrayName = (data: unknown): string | undefined =>
  nameGetter.call(data) as string | undefined;

/** Number of elements; 0 where the buffer is detached, or has shrunk below it. */
export const lengthOf = (data: AnyTypedArray): number => lengthGetter.call(data) as number;

export const bufferOf = (data: AnyTypedArray): ArrayBufferLike =>
  bufferGetter.call(data) as ArrayBufferLike;

export const byteOffsetOf = (data: AnyTypedArray): number => offsetGetter.call(data) as number;

const classes = { Float32Array, Uint8Array, Uint16Array, Int32Array } as const;

/** A view of the same numbers, without what has been done to its properties. */
export function pristine<T extends AnyTypedArray>(data: T): T {
  const TypedArray = classes[typedArrayName(data) as keyof typeof classes];
  const length = lengthOf(data);
  // Of a detached buffer there is no view.
  if (length === 0) return new TypedArray() as T;
  return new TypedArray(bufferOf(data) as ArrayBuffer, byteOffsetOf(data), length) as T;
}
