// The extents of tensors.

import type { Shape } from '../types/index.js';
import type { Extents } from '../types/wire.js';
import { shapeError } from './errors.js';

/** Allowed numbers of axes of a shape. */
export interface Ranks {
  readonly least: number;
  readonly most: number;
}

/**
 * Limits for tensors in state dicts and safetensors files. No parameter has more than four axes, but a higher limit
 * lets the core's error about a misshaped tensor show its shape.
 */
export const parameterRanks: Ranks = { least: 0, most: 8 };

/** The largest extent: the arguments of the core's calls are 32-bit integers. */
export const maxExtent = 2 ** 31 - 1;

/** Formats a shape for error messages: "(1, 12, 1024, 64)". */
export const formatShape = (shape: Shape): string => `(${shape.join(', ')})`;

/** Advice for an operand of attention that lacks its first axes, such as one head, (N, d). */
export function rankAdvice(axes: string, shape: Shape): string {
  const lacking = axes.split(',').length - shape.length;
  const isOperand = axes.startsWith('(B, H') && lacking > 0 && shape.length > 1;
  return isOperand ? `: reshape to ${formatShape([...new Array<number>(lacking).fill(1), ...shape])}` : '';
}

export function sameShape(a: Shape, b: Shape): boolean {
  if (a.length !== b.length) return false;
  for (let axis = 0; axis < a.length; axis += 1) if (a[axis] !== b[axis]) return false;
  return true;
}

/** Throws `E_SHAPE`. Loops over an index, because some() and iterators are slow on frozen shapes: 0.5 µs per call. */
export function checkExtents(shape: Shape, argument: string): asserts shape is Extents {
  for (let axis = 0; axis < shape.length; axis += 1) {
    if ((shape[axis] as number) <= maxExtent) continue;
    throw shapeError(argument, 'extents below 2³¹', formatShape(shape));
  }
}

export const elements = (shape: Shape): number => shape.reduce((product, extent) => product * extent, 1);
