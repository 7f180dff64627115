// Half-precision floats to and from 32-bit ones. Not Float16Array, which Node 20 lacks.

import type { HalfDType } from './tensor_types.js';

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

/** To nearest, ties to even; beyond the largest finite number infinity; NaN stays NaN. */
function toFloat16(value: number): number {
  float[0] = value;
  const word = bits[0] as number;
  const sign = (word >>> 16) & 0x8000;
  const magnitude = word & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | ((magnitude >>> 13) & 0x3ff); // NaN, quiet
  if (magnitude >= 0x47800000) return sign | 0x7c00; // 2^16
  if (magnitude < 0x38800000) {
    // Below 2^-14. In [1/2, 1) floats are the multiples of 2^-24, as subnormal halves are: the
    // addition rounds, once, because a sum that is not exact in 64 bits is far from any tie.
    float[0] = Math.abs(float[0]) + 0.5;
    return sign | ((bits[0] as number) - 0x3f000000);
  }
  // The carry of the rounding goes into the exponent, up to infinity. 112 = 127 - 15.
  const rounded = magnitude + 0xfff + ((magnitude >>> 13) & 1);
  return sign | ((rounded - (112 << 23)) >>> 13);
}

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
  // The exponent is 112 too small, also where the number is subnormal.
  bits[0] = sign | ((half & 0x7fff) << 13);
  return (float[0] as number) * 2 ** 112;
}

function fromBfloat16(half: number): number {
  bits[0] = half << 16;
  return float[0] as number;
}

/**
 * Of the two floats around a number, the one whose last bit is 1; the number itself where it is a
 * float. Rounding that to a half gives what rounding the number itself would: "round to odd", Boldo
 * and Melquiond, IEEE Transactions on Computers 57(4), 2008.
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

/** As roundToHalf(), of doubles: each is rounded once. */
export function roundDoublesToHalf(
  numbers: Float64Array,
  dtype: HalfDType,
): Uint16Array<ArrayBuffer> {
  return roundToHalf(Float32Array.from(numbers, toOddFloat), dtype);
}

/** The bits of each number, rounded to nearest and ties to even. */
export function roundToHalf(numbers: Float32Array, dtype: HalfDType): Uint16Array<ArrayBuffer> {
  const round = dtype === 'f16' ? toFloat16 : toBfloat16;
  const halves = new Uint16Array(numbers.length);
  for (let i = 0; i < halves.length; i += 1) halves[i] = round(numbers[i] as number);
  return halves;
}

/** Exact. */
export function halfToFloats(halves: Uint16Array, dtype: HalfDType): Float32Array<ArrayBuffer> {
  const widen = dtype === 'f16' ? fromFloat16 : fromBfloat16;
  const numbers = new Float32Array(halves.length);
  for (let i = 0; i < numbers.length; i += 1) numbers[i] = widen(halves[i] as number);
  return numbers;
}
