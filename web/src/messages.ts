// What the page and its worker say to each other.

import type { Backend, MemoryInfo, TraceName } from 'multihead';
import type { LayerWeights, PatternId } from './patterns.js';

export interface ForwardInput {
  readonly tokens: readonly string[];
  readonly heads: readonly PatternId[];
  readonly causal: boolean;
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

export interface ForwardResult extends ForwardInput {
  readonly weights: LayerWeights;
  /** Every step, as the core computed it. */
  readonly trace: Trace;
  /** One forward pass without the trace, the mean over some repetitions. */
  readonly milliseconds: number;
  readonly backend: Backend;
  /** What is allocated in the WebAssembly memory between two passes. */
  readonly memory: MemoryInfo;
}

export interface Request extends ForwardInput {
  readonly id: number;
}

export type Answer =
  | { readonly kind: 'result'; readonly id: number; readonly result: ForwardResult }
  | { readonly kind: 'failed'; readonly id: number; readonly message: string };
