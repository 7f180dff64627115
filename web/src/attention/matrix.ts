// Matrices, row-major.

export interface Matrix {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

/** A row of one head, in a matrix whose last three axes are heads, rows and columns. A view of the data, not a copy. */
export function rowOf({ data, shape }: Matrix, head: number, row: number): Float32Array {
  const [rows, cols] = shape.slice(-2) as [number, number];
  const start = (head * rows + row) * cols;
  return data.subarray(start, start + cols);
}

/** (rows, cols) to (cols, rows). */
export function transposed(data: Float32Array, rows: number, cols: number): Float32Array<ArrayBuffer> {
  const turned = new Float32Array(data.length);
  for (let r = 0; r < rows; r += 1) {
    for (let c = 0; c < cols; c += 1) turned[c * rows + r] = data[r * cols + c]!;
  }
  return turned;
}

/** Index of the largest number, the first of several; 0 if there is a NaN. */
export const largestIndex = (row: Float32Array): number => Math.max(0, row.indexOf(Math.max(...row)));
