import type { HalfDType } from 'multihead';
import { describe, expect, it } from 'vitest';
import { halfToFloats, roundToHalf } from '../src/runtime/half.ts';
import { decode, encode, round } from './half_reference.ts';
import { random, runSeed } from './random.ts';

const everyHalf = Uint16Array.from({ length: 2 ** 16 }, (_, bits) => bits);

describe.each<HalfDType>(['f16', 'bf16'])('%s', (dtype) => {
  it('converts each of its 65536 bit patterns to a float exactly', () => {
    const floats = halfToFloats(everyHalf, dtype);
    everyHalf.forEach((bits) => {
      if (!Object.is(floats[bits], decode(bits, dtype))) {
        expect.fail(`${bits} is ${floats[bits]}, expected ${decode(bits, dtype)}`);
      }
    });
  });

  it('survives the conversion to float and back; NaN stays NaN', () => {
    const bits = roundToHalf(halfToFloats(everyHalf, dtype), dtype);
    everyHalf.forEach((wanted) => {
      const same = Number.isNaN(decode(wanted, dtype)) ? Number.isNaN(decode(bits[wanted] as number, dtype)) : bits[wanted] === wanted;
      if (!same) expect.fail(`${wanted} became ${bits[wanted]}`);
    });
  });

  it('rounds a float to nearest, ties to even', () => {
    // Midpoints of all adjacent numbers, and the floats next to each midpoint.
    const middles: number[] = [];
    for (let bits = 0; bits < 0x7fff; bits += 1) {
      const [low, high] = [decode(bits, dtype), decode(bits + 1, dtype)];
      if (!Number.isFinite(low) || !Number.isFinite(high)) continue;
      const middle = (low + high) / 2;
      const word = new Float32Array([middle]);
      for (const step of [-1, 0, 1]) {
        const beside = word.slice();
        const integer = new Uint32Array(beside.buffer);
        integer[0] = (integer[0] as number) + step;
        middles.push(beside[0] as number, -(beside[0] as number));
      }
    }
    const r = random(runSeed);
    const any = Array.from({ length: 20_000 }, () => r.next() * 2 ** r.int(-30, 20));
    const numbers = Float32Array.from([...middles, ...any]);
    const halves = roundToHalf(numbers, dtype);
    numbers.forEach((number, index) => {
      const got = decode(halves[index] as number, dtype);
      const wanted = round(number, dtype);
      if (got !== wanted) expect.fail(`${number} became ${got}, expected ${wanted}`);
    });
    expect(encode(1, dtype)).toBe(dtype === 'f16' ? 0x3c00 : 0x3f80);
  });

  it('has zeros of both signs and infinities', () => {
    const numbers = new Float32Array([0, -0, Infinity, -Infinity, 3.4e38, -3.4e38, 65519, 65520]);
    const [infinity, largest] = dtype === 'f16' ? [0x7c00, 0x7c00] : [0x7f80, 0x7f80];
    const rounded = [...roundToHalf(numbers, dtype)];
    expect(rounded.slice(0, 6)).toEqual([...[0, 0x8000, infinity, infinity | 0x8000], ...[largest, largest | 0x8000]]);
    if (dtype === 'f16') expect(rounded.slice(6)).toEqual([0x7bff, 0x7c00]);
  });
});
