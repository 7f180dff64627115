// The sentences of the core's errors, which are data there: a message, the argument and numbers.

import type { Results } from './arguments.js';
import { axes, messages, names } from './tables.js';
import { formatShape } from './tensor.js';

/** In the order of multihead::DType. */
const dtypes = ['f32', 'f16', 'bf16', 'int8'];

/** What embind.cpp's last_error() has written. */
export function readError(results: Results): { argument: string; expected: string; got: string } {
  const text = results.text();
  const [expected, got] = messages[results.number()] as readonly [string, string];
  const argument = names[results.number()] as string;
  const letters = axes[results.number()] as string;
  const real = results.number();
  const numbers = [0, 1, 2, 3].map(() => results.number());
  const shape = results.shape();
  const given = results.shape();
  const values: Readonly<Record<string, () => string>> = {
    text: () => text,
    axes: () => letters,
    real: () => String(Number(real.toPrecision(6))),
    shape: () => formatShape(shape),
    given: () => formatShape(given),
    dtype0: () => String(dtypes[numbers[0] as number]),
    dtype1: () => String(dtypes[numbers[1] as number]),
    divisors: () => divisorsOf(numbers[0] as number),
  };
  // Text and names of values alternate: braces stand around these alone.
  const filled = (template: string): string =>
    template
      .split(/[{}]/)
      .map((part, at) => (at % 2 === 0 ? part : (values[part]?.() ?? String(numbers[Number(part)]))))
      .join('');
  return { argument, expected: filled(expected), got: filled(got) };
}

/** "1, 2, 4 or 8" */
function divisorsOf(number: number): string {
  const divisors: number[] = [];
  for (let low = 1; low * low <= number; low += 1) {
    if (number % low === 0) divisors.push(low);
  }
  const others = divisors.map((low) => number / low).reverse();
  if (others[0] === divisors.at(-1)) others.shift();
  divisors.push(...others);
  const last = divisors.pop();
  return divisors.length === 0 ? String(last) : `${divisors.join(', ')} or ${last}`;
}
