import { expect, test } from 'vitest';
import { largestIndex, rowOf } from '../../src/attention/matrix.js';

test('a row of a head is found behind any number of leading axes', () => {
  const data = Float32Array.from({ length: 12 }, (_, i) => i);
  expect([...rowOf({ shape: [2, 2, 3], data }, 1, 0)]).toEqual([6, 7, 8]);
  expect([...rowOf({ shape: [1, 2, 2, 3], data }, 1, 1)]).toEqual([9, 10, 11]);
  expect([...rowOf({ shape: [4, 3], data }, 0, 2)]).toEqual([6, 7, 8]);
});

test('the first of several largest numbers counts', () => {
  expect(largestIndex(Float32Array.of(0, 2, 2, 1))).toBe(1);
  expect(largestIndex(Float32Array.of(1, NaN))).toBe(0);
});
