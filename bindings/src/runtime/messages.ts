// Composes the error messages of the core, which reports an error as a message number, an argument and numbers.

import { coreTables, dtypes, type ErrorTables } from '../generated/tables.js';
import type { CoreError } from '../generated/wire.js';
import type { MultiheadErrorParts } from './errors.js';
import { formatShape, rankAdvice } from './shape.js';

const dtypeNames = Object.keys(dtypes);

/** The texts of an error. `more`: those that multihead/core does not contain. */
export function sentencesOf(error: CoreError, more: readonly ErrorTables[]): MultiheadErrorParts {
  const { text, real, shape, given } = error;
  const textOf = (table: keyof ErrorTables, at: number): string => [coreTables, ...more].map((part) => part[table][at]).find(Boolean) ?? '';
  const [expected = '', got = '', sentence = ''] = [0, 1, 2].map((part) => textOf('messages', 3 * error.message + part));
  const argument = error.ownArgument.replace(/^source_edits/, 'encoderEdits') || textOf('names', error.argument);
  const letters = textOf('axes', error.axes);
  const numbers = [error.number0, error.number1, error.number2, error.number3];
  const values: Readonly<Record<string, () => string>> = {
    text: () => text,
    axes: () => letters,
    real: () => String(Number(real.toPrecision(6))),
    shape: () => formatShape(shape),
    given: () => formatShape(given) + (shape.length === 0 ? rankAdvice(letters, given) : ''),
    dtype0: () => String(dtypeNames[numbers[0] as number]),
    dtype1: () => String(dtypeNames[numbers[1] as number]),
    name0: () => textOf('names', numbers[0] as number),
    divisors: () => listed(divisorsOf(numbers[0] as number)),
  };
  // Splitting at the braces alternates between text and names of values.
  const filled = (template: string): string =>
    template
      .split(/[{}]/)
      .map((part, at) => (at % 2 === 0 ? part : (values[part]?.() ?? String(numbers[Number(part)]))))
      .join('');
  const sentences = { argument, expected: error.ownExpected || filled(expected), got: filled(got) };
  return sentence === '' ? sentences : { ...sentences, message: `${argument}: ${filled(sentence)}` };
}

/** The divisors of a number, the smallest first. */
export function divisorsOf(number: number): number[] {
  const divisors: number[] = [];
  for (let low = 1; low * low <= number; low += 1) if (number % low === 0) divisors.push(low);
  return [...new Set([...divisors, ...divisors.map((low) => number / low).reverse()])];
}

/** "1, 2, 4 or 8" */
export const listed = (numbers: readonly number[]): string => numbers.join(', ').replace(/, (\d+)$/, ' or $1');
