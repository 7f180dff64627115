// Slices along the leading axes of tensors: the operands of a worker, and the destination of its results.

import type { Numbers } from '../runtime/read_tensor.js';
import { elements } from '../runtime/shape.js';
import type { DType, Shape } from '../types/index.js';
import type { Range } from './shared/parts.js';

/** Start offsets and common length of the contiguous runs that the ranges select, in order. */
function runsOf(shape: Shape, ranges: readonly Range[]): { length: number; starts: number[] } {
  // The nonzero extents of an empty tensor may be as large as 2³¹ − 1, so do not enumerate them.
  if (elements(shape) === 0) return { length: 0, starts: [] };
  let starts = [0];
  let length = elements(shape);
  ranges.forEach(([first, end], axis) => {
    const step = elements(shape.slice(axis + 1));
    length = (end - first) * step;
    if (axis === ranges.length - 1) {
      starts = starts.map((start) => start + first * step);
      return;
    }
    const indices = Array.from({ length: end - first }, (_, index) => first + index);
    starts = starts.flatMap((start) => indices.map((index) => start + index * step));
  });
  return { length, starts };
}

/** Selects ranges of the leading axes. Returns a view if the selection is contiguous, else a copy. */
export function sliceOf<D extends DType>({ data, shape, dtype }: Numbers<D>, ...ranges: Range[]): Numbers<D> {
  const { length, starts } = runsOf(shape, ranges);
  const extents = shape.map((extent, axis) => {
    const range = ranges[axis];
    return range === undefined ? extent : range[1] - range[0];
  });
  const inARow = starts.every((start, index) => index === 0 || start === (starts[index - 1] as number) + length);
  const from = data as Float32Array;
  if (inARow || length === 0) {
    const first = starts[0] ?? 0;
    return { data: from.subarray(first, first + elements(extents)) as typeof data, shape: extents, dtype };
  }
  const Same = from.constructor as new (length: number) => Float32Array;
  const copy = new Same(elements(extents));
  starts.forEach((start, index) => copy.set(from.subarray(start, start + length), index * length));
  return { data: copy as typeof data, shape: extents, dtype };
}

/** Writes a slice back to its place. */
export function writeSlice(whole: Numbers, part: Numbers, ...ranges: Range[]): void {
  const { length, starts } = runsOf(whole.shape, ranges);
  if (length === 0) return;
  const [to, from] = [whole.data as Float32Array, part.data as Float32Array];
  starts.forEach((start, index) => to.set(from.subarray(index * length, (index + 1) * length), start));
}

/** Transposes the first two axes: (A, B, …) to (B, A, …), for example (tokens, heads, d) to (heads, tokens, d). */
export function swapped<D extends DType>({ data, shape, dtype }: Numbers<D>): Numbers<D> {
  const [rows = 0, columns = 0] = shape;
  const width = elements(shape.slice(2));
  const from = data as Float32Array;
  const Same = from.constructor as new (length: number) => Float32Array;
  const copy = new Same(from.length);
  for (let row = 0; row < rows && copy.length > 0; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const at = (row * columns + column) * width;
      copy.set(from.subarray(at, at + width), (column * rows + row) * width);
    }
  }
  return { data: copy as typeof data, shape: [columns, rows, ...shape.slice(2)], dtype };
}

export const reshapedTo = <D extends DType>({ data, dtype }: Numbers<D>, shape: Shape): Numbers<D> => ({
  ...{ data, shape, dtype },
});
