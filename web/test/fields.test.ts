import { describe, expect, it } from 'vitest';
import { flag, index, indexOrNone, integer, listOf, number, oneOf, textUpTo, type Field } from '../src/fields.js';

/** Values that come back from their own text, and texts that are not values. */
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
  it('index counts from 1 in the text', () => {
    check(index(8), [7], ['0', '9', '', '1.5']);
    expect(index(8).toText(2)).toBe('3');
  });
  it('indexOrNone', () => {
    check(indexOrNone(8), [0, 7], ['0', '9', '', 'null']);
    expect(indexOrNone(8).default).toBeNull();
  });
});
