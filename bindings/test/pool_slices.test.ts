// Slices along the leading axes of tensors, which a pool sends to its workers.

import { expect, test } from 'vitest';
import { sliceOf, swapped, writeSlice } from '../src/pool/slices.ts';

const numbers = (...shape: number[]) => ({
  data: Float32Array.from({ length: shape.reduce((product, extent) => product * extent, 1) }, (_, index) => index),
  ...{ shape, dtype: 'f32' as const },
});

test('a slice has the elements of its ranges, and goes back to their place', () => {
  const whole = numbers(2, 3, 2);
  const part = sliceOf(whole, [0, 2], [1, 3]);
  expect(part).toEqual({ data: Float32Array.of(2, 3, 4, 5, 8, 9, 10, 11), shape: [2, 2, 2], dtype: 'f32' });
  const back = { ...whole, data: new Float32Array(12) };
  writeSlice(back, part, [0, 2], [1, 3]);
  expect(back.data).toEqual(Float32Array.of(0, 0, 2, 3, 4, 5, 0, 0, 8, 9, 10, 11));
  expect(swapped(numbers(2, 3)).data).toEqual(Float32Array.of(0, 3, 1, 4, 2, 5));
});

test('a slice without gaps is a view: its elements are not copied', () => {
  const whole = numbers(3, 2, 2);
  for (const ranges of [
    [[0, 3]],
    [[1, 2]],
    [
      [1, 3],
      [0, 2],
    ],
    [
      [2, 3],
      [1, 2],
    ],
    [
      [1, 2],
      [0, 2],
      [0, 2],
    ],
  ] as const) {
    const { data } = sliceOf(whole, ...ranges);
    expect(data.buffer, JSON.stringify(ranges)).toBe(whole.data.buffer);
    expect(data[0]).toBe(data.byteOffset / 4);
  }
  expect(sliceOf(whole, [0, 2], [0, 1]).data.buffer).not.toBe(whole.data.buffer);
});

test('a tensor without elements has no runs, whatever its other extents', () => {
  const many = 2 ** 31 - 1;
  const none = numbers(many, 0);
  expect(sliceOf(none, [1, many], [0, 0])).toEqual({ data: new Float32Array(), shape: [many - 1, 0], dtype: 'f32' });
  writeSlice(none, none, [0, many], [0, 0]);
  expect(swapped(numbers(many, many, 0)).shape).toEqual([many, many, 0]);
});
