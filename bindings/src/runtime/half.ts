// Conversion between half-precision and 32-bit floats. Node 20 has no Float16Array.

import type { HalfDType } from '../types/tensor.js';

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

/** Returns the bits of the nearest binary16, ties to even. Overflow gives infinity; NaN stays NaN. */
function toFloat16(value: number): number {
  float[0] = value;
  const word = bits[0] as number;
  const sign = (word >>> 16) & 0x8000;
  const magnitude = word & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | ((magnitude >>> 13) & 0x3ff); // NaN, quiet
  if (magnitude >= 0x47800000) return sign | 0x7c00; // 2^16
  if (magnitude < 0x38800000) {
    // Below 2^-14 the result is subnormal, a multiple of 2^-24. Floats in [1/2, 1) are multiples of 2^-24 too, so
    // adding 1/2 and storing the sum as a float rounds correctly. The double addition before that cannot cause a wrong
    // tie: a sum that is not exact in 64 bits is far from any tie.
    float[0] = Math.abs(float[0]) + 0.5;
    return sign | ((bits[0] as number) - 0x3f000000);
  }
  // Rounding may carry into the exponent, up to infinity. 112 = 127 - 15, the exponent biases.
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | ((rounded - (112 << 23)) >>> 13);
}

/** Returns the bits of the nearest bfloat16, ties to even. */
function toBfloat16(value: number): number {
  float[0] = value;
  const word = bits[0] as number;
  if ((word & 0x7fffffff) > 0x7f800000) return (word >>> 16) | 0x40;
  return ((word + 0x7fff + ((word >>> 16) & 1)) >>> 16) & 0xffff;
}

function fromFloat16(half: number): number {
  const exponent = half & 0x7c00;
  const sign = (half & 0x8000) << 16;
  if (exponent === 0x7c00) {
    bits[0] = sign | 0x7f800000 | ((half & 0x3ff) << 13);
    return float[0] as number;
  }
  // These bits read as a float give an exponent that is 112 too small, for subnormal numbers too.
  bits[0] = sign | ((half & 0x7fff) << 13);
  return (float[0] as number) * 2 ** 112;
}

function fromBfloat16(half: number): number {
  bits[0] = half << 16;
  return float[0] as number;
}

/**
 * Rounds a double to a float "to odd": exactly if it is a float, else to the neighbor whose last bit
 * is 1. Rounding the result to a half then gives the same as rounding the double directly (Boldo and
 * Melquiond, IEEE Transactions on Computers 57(4), 2008).
 */
function toOddFloat(value: number): number {
  float[0] = value;
  const nearest = float[0];
  const isExact = nearest === value || Number.isNaN(value);
  if (!isExact && (bits[0] as number) % 2 === 0) {
    bits[0] = (bits[0] as number) + (Math.abs(nearest) < Math.abs(value) ? 1 : -1);
  }
  return float[0];
}

/** Like roundToHalf(), for doubles, without double rounding. */
export const roundDoublesToHalf = (numbers: Float64Array, dtype: HalfDType): Uint16Array<ArrayBuffer> =>
  roundToHalf(Float32Array.from(numbers, toOddFloat), dtype);

/** Returns the bits of each number, rounded to nearest, ties to even. */
export function roundToHalf(numbers: Float32Array, dtype: HalfDType): Uint16Array<ArrayBuffer> {
  const round = dtype === 'f16' ? toFloat16 : toBfloat16;
  const halves = new Uint16Array(numbers.length);
  for (let i = 0; i < halves.length; i += 1) halves[i] = round(numbers[i] as number);
  return halves;
}

/** Converts half-precision bits to floats; exact. */
export function halfToFloats(halves: Uint16Array, dtype: HalfDType): Float32Array<ArrayBuffer> {
  const widen = dtype === 'f16' ? fromFloat16 : fromBfloat16;
  const numbers = new Float32Array(halves.length);
  for (let i = 0; i < numbers.length; i += 1) numbers[i] = widen(halves[i] as number);
  return numbers;
}
