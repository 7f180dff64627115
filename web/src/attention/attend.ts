// One call of attention with one head, for the scenes of the story.

import type { Multihead } from 'multihead';
import type { Matrix } from './matrix.js';

export interface AttendInput {
  /** (N, d) */
  readonly q: Matrix;
  /** (M, d) */
  readonly k: Matrix;
  /** (M, d_v) */
  readonly v: Matrix;
  /** The scores are multiplied by it; 1 / √d by default. */
  readonly scale?: number | undefined;
  /** True: the last row of q belongs to the last key, and no row sees a key after its own. */
  readonly causal?: boolean | undefined;
}

export interface Attended {
  /** (N, M): q · k, not scaled */
  readonly products: Float32Array;
  /** (N, M) */
  readonly weights: Float32Array;
  /** (N, d_v) */
  readonly output: Float32Array;
}

const asOneHead = ({ data, shape }: Matrix): Matrix => ({ data, shape: [1, 1, ...shape] });

export function attend(mh: Multihead, { q, k, v, scale, causal = false }: AttendInput): Attended {
  return mh.scope(() => {
    const { out, weights } = mh.attention(asOneHead(q), asOneHead(k), asOneHead(v), {
      ...(scale !== undefined && { scale }),
      ...(causal && { causal: 'bottomRight' }),
      return: ['weights'],
    });
    return { products: mh.linear(q, k).toFloat32(), weights: weights.toFloat32(), output: out.toFloat32() };
  });
}
