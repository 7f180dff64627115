// Checks of options objects: unknown names are errors, nothing is converted silently.

import { MultiheadError } from './errors.js';
import type { Operands } from './operands.js';
import type { RawCausal, RawMasking } from './raw.js';
import { describe, maxExtent } from './tensor.js';
import type { MaskOptions } from './types.js';

/** The names in {@link MaskOptions}. */
export const maskNames = ['scale', 'causal', 'mask', 'bias'] as const;

const list = (names: readonly string[]): string => names.join(', ');

/** Throws `E_OPTION` for what is not an object, or has a property that is not in `known`. */
export function checkOptions(options: unknown, known: readonly string[], argument: string): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: `an object with some of ${list(known)}`,
      got: describe(options),
    });
  }
  const unknown = Object.keys(options).find((name) => !known.includes(name));
  if (unknown === undefined) return;
  throw new MultiheadError('E_OPTION', {
    argument: unknown,
    expected: `an option named ${list(known)}`,
    got: `"${unknown}"`,
    message: `${argument}: there is no "${unknown}"; known are ${list(known)}`,
  });
}

/** A list of names, each one of `known`; throws `E_OPTION`. */
export function checkNames<N extends string>(
  value: unknown,
  known: readonly N[],
  argument: string,
): readonly N[] {
  if (Array.isArray(value) && value.every((name: N) => known.includes(name))) return value as N[];
  const wrong: unknown = Array.isArray(value)
    ? value.find((name: N) => !known.includes(name))
    : value;
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: `an array of some of ${list(known)}`,
    got: describe(wrong),
  });
}

/** A whole number from 1 to 2³¹ − 1; throws `E_OPTION`. */
export function checkCount(value: unknown, argument: string): number {
  if (Number.isInteger(value) && (value as number) >= 1 && (value as number) <= maxExtent) {
    return value as number;
  }
  throw new MultiheadError('E_OPTION', {
    argument,
    expected: 'a whole number ≥ 1 (and below 2³¹)',
    got: describe(value),
  });
}

function checkScale(scale: unknown): number | undefined {
  if (scale === undefined || typeof scale === 'number') return scale;
  throw new MultiheadError('E_OPTION', {
    argument: 'scale',
    expected: 'a finite number',
    got: describe(scale),
  });
}

/** The alignment and offset of a `causal` option; throws `E_OPTION`. */
export function checkCausal(value: unknown): { causal: RawCausal; offset: number } {
  if (value === undefined || value === false) return { causal: 0, offset: 0 };
  if (value === 'topLeft') return { causal: 1, offset: 0 };
  if (value === 'bottomRight') return { causal: 2, offset: 0 };
  const expected = "false, 'topLeft', 'bottomRight' or { offset: a whole number }";
  if (value === true) {
    throw new MultiheadError('E_OPTION', {
      argument: 'causal',
      expected,
      got: 'true',
      message:
        'causal: true does not say how queries and keys align when there are not as many of each; ' +
        "use 'topLeft' (query i sees keys 0 to i, as PyTorch's is_causal) or 'bottomRight' " +
        '(the last query sees every key, as FlashAttention and caches have it)',
    });
  }
  if (typeof value === 'object' && value !== null && 'offset' in value) {
    checkOptions(value, ['offset'], 'causal');
    const { offset } = value;
    if (Number.isSafeInteger(offset)) return { causal: 3, offset: offset as number };
    throw new MultiheadError('E_OPTION', {
      argument: 'causal.offset',
      expected: 'a whole number',
      got: describe(offset),
    });
  }
  throw new MultiheadError('E_OPTION', { argument: 'causal', expected, got: describe(value) });
}

/** The part of the raw arguments that masking is. */
export function maskingArgs(options: MaskOptions, operands: Operands): RawMasking {
  const scale = checkScale(options.scale);
  return {
    ...checkCausal(options.causal),
    scale: scale ?? 0,
    hasScale: scale !== undefined,
    mask: operands.optional(options.mask, 'bool', 'mask'),
    bias: operands.optional(options.bias, 'f32', 'bias'),
  };
}
