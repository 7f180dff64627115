// Half-precision numbers by arithmetic on their values, without the bits of floats.

import type { FloatDType, HalfDType } from 'multihead';

/** Number of fraction bits, smallest exponent of a normal number, and the first number above the largest. */
const formats = {
  f16: { fraction: 10, least: -14, beyond: 2 ** 16 },
  bf16: { fraction: 7, least: -126, beyond: 2 ** 128 },
} as const;

/** The distance between neighboring numbers of the format near `value`. */
export function unitInLastPlace(value: number, dtype: FloatDType): number {
  if (dtype === 'f32') return 0;
  const { fraction, least } = formats[dtype];
  const magnitude = Math.abs(value);
  const exponent = magnitude === 0 ? least : Math.floor(Math.log2(magnitude));
  return 2 ** (Math.max(exponent, least) - fraction);
}

/** The nearest number of the format, ties to an even last bit. */
export function round(value: number, dtype: FloatDType): number {
  if (dtype === 'f32') return Math.fround(value);
  if (!Number.isFinite(value) || value === 0) return value;
  const unit = unitInLastPlace(value, dtype);
  const steps = Math.abs(value) / unit;
  const below = Math.floor(steps);
  const up = steps - below > 0.5 || (steps - below === 0.5 && below % 2 === 1);
  const rounded = (below + (up ? 1 : 0)) * unit;
  const magnitude = rounded >= formats[dtype].beyond ? Infinity : rounded;
  return value < 0 ? -magnitude : magnitude;
}

export function decode(bits: number, dtype: HalfDType): number {
  const { fraction, least } = formats[dtype];
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits & 0x7fff) >> fraction;
  const rest = bits & (2 ** fraction - 1);
  const largest = 2 ** (15 - fraction) - 1;
  if (exponent === largest) return rest === 0 ? sign * Infinity : NaN;
  if (exponent === 0) return sign * rest * 2 ** (least - fraction);
  return sign * (1 + rest / 2 ** fraction) * 2 ** (exponent - 1 + least);
}

const encoders = new Map<HalfDType, Map<number, number>>();

/** The bits of a number of the format; not for NaN and −0. */
export function encode(value: number, dtype: HalfDType): number {
  let encoder = encoders.get(dtype);
  if (encoder === undefined) {
    encoder = new Map();
    for (let bits = 0xffff; bits >= 0; bits -= 1) encoder.set(decode(bits, dtype), bits);
    encoders.set(dtype, encoder);
  }
  const bits = encoder.get(round(value, dtype));
  if (bits === undefined) throw new RangeError(`${value} as ${dtype}`);
  return bits;
}
