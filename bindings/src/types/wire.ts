// Values that cross between JavaScript and the core.

import type { DType } from './tensor.js';

// Types of whole numbers, named after the C++ types that the core reads. WebAssembly reduces a number outside the range
// modulo 2³², so the functions of wire.ts accept only these types. checkCount(), checkWhole() and checkExtents() return
// them, and results of the core have them. The symbols exist only in the type system.
declare const int32: unique symbol;
declare const uint32: unique symbol;
declare const int64: unique symbol;
interface Fits32 {
  readonly [int32]: true;
  readonly [int64]: true;
}
interface FitsUnsigned32 {
  readonly [uint32]: true;
  readonly [int64]: true;
}
/** A whole number from −(2⁵³ − 1) to 2⁵³ − 1. */
export type Int64 = -1 | 0 | 1 | (number & { readonly [int64]: true });
/** A whole number from −2³¹ to 2³¹ − 1. */
export type Int32 = -1 | 0 | 1 | 2 | (number & Fits32);
/** A whole number from 0 to 2³² − 1. */
export type Uint32 = 0 | 1 | (number & FitsUnsigned32);
/** A whole number from 0 to 2³¹ − 1. */
export type Count = 0 | 1 | (number & Fits32 & FitsUnsigned32);
/** A shape that the core can read. */
export type Extents = readonly Count[];

/** Address and shape of a tensor; row-major without gaps. */
export interface Operand<D extends DType = DType> {
  readonly address: Uint32;
  readonly dtype: D;
  readonly shape: Extents;
}

/** Consecutive numbers, or the bytes of a text. Address 0 with length 0 means "not given". */
export interface Span<E extends 'f32' | 'f64' | 'i32' | 'bool' | 'text'> {
  readonly address: Uint32;
  readonly length: Uint32;
  /** Used only by the type checker; no span has this property. */
  readonly elements?: E;
}

/** A whole number of 64 bits. */
export interface Whole64 {
  readonly low: Uint32;
  readonly high: Uint32;
}

/** Writes the arguments of a call. */
export interface WireWriter {
  begin(): void;
  number(value: number): void;
  flag(value: boolean): void;
  optional(value: number | undefined): void;
  whole64(value: Whole64): void;
  tensor(operand: Operand | undefined): void;
  span(span: Span<'f32' | 'f64' | 'i32' | 'bool' | 'text'>): void;
}

/** Reads the results of a call. */
export interface WireReader {
  number(): number;
  flag(): boolean;
  wholes(): number[];
  doubles(): Float64Array;
  floats(): Float32Array<ArrayBuffer>;
  integers(): Int32Array;
  texts(): string[];
  text(): string;
}
