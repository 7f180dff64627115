// The messages between the page and its worker.

import type { Backend, MemoryInfo, TraceName } from 'multihead';
import type { ModuleWeights, PatternId } from './patterns.js';

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
  readonly weights: ModuleWeights;
  /** The steps that the page shows, as the core computed them. */
  readonly trace: Trace;
  /** Mean duration of a forward pass without a trace. */
  readonly milliseconds: number;
  readonly backend: Backend;
  /** mh.memory() after the pass. */
  readonly memory: MemoryInfo;
}

export interface Request extends ForwardInput {
  readonly id: number;
}

export type Answer =
  | { readonly kind: 'result'; readonly id: number; readonly result: ForwardResult }
  | { readonly kind: 'failed'; readonly id: number; readonly message: string };
