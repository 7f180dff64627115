/** Every step of multi-head attention in float64, by its name in the trace. */
export function reference(options: {
  x: ArrayLike<number>;
  n: number;
  embedDim: number;
  heads: number;
  headDim: number;
  causal: boolean;
  weights: object;
  bend?: object;
}): Record<string, Float64Array>;
