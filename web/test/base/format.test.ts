import { describe, expect, it } from 'vitest';
import { formatMilliseconds, formatNumber, formatPercent, formatShape, listed, wholePercents } from '../../src/base/format.js';

describe('listed', () => {
  it('gives ten names, and the number of the others', () => {
    expect(listed([])).toBe('');
    expect(listed(['a', 'b'])).toBe('a, b');
    const names = Array.from({ length: 522 }, (_, i) => String(i));
    expect(listed(names.slice(0, 10))).toBe('0, 1, 2, 3, 4, 5, 6, 7, 8, 9');
    expect(listed(names)).toBe('0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 512 more');
  });
});

describe('wholePercents', () => {
  it('adds up to 100, the largest remainders rounded up', () => {
    expect(wholePercents([0.313, 0.259, 0.252, 0.068, 0.065, 0.043])).toEqual([31, 26, 25, 7, 7, 4]);
    expect(wholePercents([1 / 3, 1 / 3, 1 / 3])).toEqual([34, 33, 33]);
    expect(wholePercents([1, 0])).toEqual([100, 0]);
    expect(wholePercents([0.9999999, 1e-7])).toEqual([100, 0]);
  });
});

describe('formatNumber', () => {
  it.each([
    [0.4129, 2, '0.41'],
    [-0.5, 3, '−0.500'],
    [-0.0001, 3, '0.000'],
    [-Infinity, 3, '−∞'],
    [Infinity, 3, '∞'],
    [NaN, 3, 'NaN'],
  ])('%d with %d digits is %s', (value, digits, text) => expect(formatNumber(value, digits)).toBe(text));

  it('writes shares', () => {
    expect([formatPercent(0.256), formatPercent(0.0349, 1), formatPercent(1)]).toEqual(['26\u00a0%', '3.5\u00a0%', '100\u00a0%']);
  });

  it('writes times and shapes', () => {
    expect(formatMilliseconds(0.001)).toBe('< 0.01 ms');
    expect(formatMilliseconds(0.456)).toBe('0.46 ms');
    expect(formatMilliseconds(12.34)).toBe('12.3 ms');
    expect(formatShape([1, 8, 7, 16])).toBe('(1, 8, 7, 16)');
  });
});
