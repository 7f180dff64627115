// The messages between the page and its worker.

import type { Backend, HeadStatistics, MemoryInfo, TraceName } from 'multihead';
import type { Bend } from './bend.js';
import type { ModuleWeights, PatternId } from './patterns.js';

export interface ForwardInput {
  readonly tokens: readonly string[];
  readonly heads: readonly PatternId[];
  readonly causal: boolean;
  readonly bend: Bend;
  /** Number of heads that the head-split section divides the 64 columns among. */
  readonly splitHeads: number;
}

export interface Matrix {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

/** The steps that the page shows. */
export const tracedSteps = [
  ...(['x', 'q', 'k', 'v', 'qHeads', 'kHeads', 'vHeads', 'scores', 'scaledScores'] as const),
  ...(['maskedScores', 'weights', 'headsOut', 'merged', 'output'] as const),
] as const satisfies readonly TraceName[];

export type Trace = { readonly [name in (typeof tracedSteps)[number]]: Matrix };

/** x (N, 64), split among heads. */
export interface Split {
  /** (H, N, 64 / H), as the core splits it. Null if it refuses. */
  readonly heads: Matrix | null;
  /** The same bytes with the same shape, but without the transpose between. */
  readonly reshaped: Matrix | null;
  /** Why the core refuses the number of heads; else empty. */
  readonly refusal: string;
}

export interface Straight {
  readonly weights: Matrix;
  readonly output: Matrix;
  readonly statistics: HeadStatistics;
}

export interface ForwardResult extends ForwardInput {
  readonly weights: ModuleWeights;
  /** The steps that the page shows, as the core computed them. */
  readonly trace: Trace;
  readonly statistics: HeadStatistics;
  /** (N, N): the mean of the weights over the heads. */
  readonly meanWeights: Matrix;
  /** The same pass without anything bent; null if nothing is. */
  readonly straight: Straight | null;
  readonly split: Split;
  readonly backend: Backend;
  /** mh.memory() after the pass. */
  readonly memory: MemoryInfo;
}

export interface Request extends ForwardInput {
  readonly id: number;
}

/** `timed` comes after the result, when the compiler has warmed up: the median duration of a pass without a trace. */
export type Answer =
  | { readonly kind: 'result'; readonly id: number; readonly result: ForwardResult }
  | { readonly kind: 'timed'; readonly id: number; readonly milliseconds: number }
  /** `argument` is that of a MultiheadError. */
  | { readonly kind: 'failed'; readonly id: number; readonly message: string; readonly argument?: string }
  /** The lock that the worker holds for life. */
  | { readonly kind: 'lock'; readonly lock: string };
