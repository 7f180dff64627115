import { describe, expect, it } from 'vitest';
import { flag, index, indexOrNone, indices, integer, listOf, number, oneOf, textUpTo, weightEdits, type Field } from '../../src/state/fields.js';

/** Checks that each value survives toText() and fromText(), and that each text in `broken` is invalid. */
function check<T>(field: Field<T>, values: readonly T[], broken: readonly string[]): void {
  for (const value of [field.default, ...values].filter((each) => each !== null)) {
    expect(field.fromText(field.toText(value))).toEqual(value);
  }
  for (const text of broken) expect(field.fromText(text), text).toBeUndefined();
}

describe('fields', () => {
  it('flag', () => check(flag(false), [true], ['', 'yes', '2', 'true']));
  it('oneOf', () => check(oneOf(['a', 'b'], 'a'), ['b'], ['', 'c', 'A', 'toString']));
  it('textUpTo', () => check(textUpTo(3, 'x'), ['', 'a&=', '猫猫猫'], ['abcd']));
  it('listOf', () => check(listOf(['a', 'b'], ['a']), [['b', 'a']], ['', 'a.a', 'a.c', 'a.']));
  it('integer', () => check(integer(-2, 99, 0), [-2, 99], ['', '100', '1.5', '1e1', ' 1', 'NaN', '٣']));
  it('number', () => check(number(0, 4, 1), [0.25, 1e-7, 4], ['', '5', '-1', '0x1', 'Infinity', '1e', '.5']));
  it('indices', () => {
    const field = indices(8);
    for (const value of [[0], [1, 7]]) expect(field.fromText(field.toText(value))).toEqual(value);
    expect(field.fromText('3.1')).toEqual([0, 2]);
    for (const text of ['', '0', '9', '1.1', '1.', 'x']) expect(field.fromText(text), text).toBeUndefined();
  });
  it('weightEdits', () => {
    const field = weightEdits(8, 64, 2);
    const edits = [
      { head: 0, query: 2, key: 1, weight: 0.25 },
      { head: 7, query: 63, key: 63, weight: 1 },
    ];
    expect(field.toText(edits)).toBe('h1q3k2w0.25_h8q64k64w1');
    expect(field.fromText(field.toText(edits))).toEqual(edits);
    const broken = ['', 'h1q3k2', 'h9q1k1w0', 'h1q65k1w0', 'h1q0k1w0', 'h1q1k1w1.5', 'h1q1k1w-1'];
    const twice = ['h1q1k1w0_h1q1k1w1', 'h1q1k1w0_', 'h1q1k1w0_h1q1k2w0_h1q1k3w0'];
    for (const text of [...broken, ...twice]) expect(field.fromText(text), text).toBeUndefined();
  });
  it('index counts from 1 in the text', () => {
    check(index(8), [7], ['0', '9', '', '1.5']);
    expect(index(8).toText(2)).toBe('3');
  });
  it('indexOrNone', () => {
    check(indexOrNone(8), [0, 7], ['0', '9', '', 'null']);
    expect(indexOrNone(8).default).toBeNull();
  });
});
