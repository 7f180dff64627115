// The messages between the page and its worker.

import type { Backend, HeadStatistics, MemoryInfo, RopeRotation, TraceName } from 'multihead';
import type { AttendInput, Attended } from './attend.js';
import type { Bend } from './bend.js';
import type { Matrix } from './matrix.js';
import type { ModuleWeights, PatternId } from './patterns.js';

/** The heads of one layer of a trained model, and the tokens that they read. */
export interface GivenHeads {
  /** Differs for another model, layer, step of training or text. */
  readonly key: string;
  readonly tokens: readonly string[];
  /** (N, embedDim): the rows that the layer's attention reads, after the norm. */
  readonly x: Float32Array<ArrayBuffer>;
  readonly embedDim: number;
  readonly headDim: number;
  readonly weights: ModuleWeights;
  readonly rope?: RopeRotation | undefined;
  readonly names: readonly string[];
  /** What was measured of each head; undefined if nothing was. */
  readonly lines?: readonly string[];
  /** Indices of the tokens that the model reads only by their form, because its vocabulary lacks them. */
  readonly unknown?: readonly number[];
  /** The model, the layer and the text of these heads, in one sentence for the page. */
  readonly line: string;
  readonly layer: number;
  readonly layers: number;
  /** What the model predicts after the text, whatever is bent; undefined for none. */
  readonly next?: NextWords | undefined;
  /** True if they do not train. */
  readonly steady?: boolean;
}

/** The heads of a layer as the worker of a model gives them, without what only the page knows. */
export type LayerHeads = Omit<GivenHeads, 'key' | 'names' | 'line'>;

/** Most heads of a layer that the page shows. */
export const mostHeads = 64;
/** Most columns of a matrix that the page draws. */
export const mostColumns = 256;

export interface ForwardInput {
  /** Undefined for hand-built heads. */
  readonly given?: GivenHeads | undefined;
  /** The layer of the words model whose heads read the tokens; the worker makes `given`. */
  readonly reads?: number | undefined;
  readonly tokens: readonly string[];
  /** The patterns of hand-built heads; for given heads, only their colors. */
  readonly heads: readonly PatternId[];
  readonly causal: boolean;
  readonly bend: Bend;
}

export const tracedSteps = [
  ...(['x', 'q', 'k', 'v', 'qHeads', 'kHeads', 'vHeads', 'scores', 'scaledScores'] as const),
  ...(['maskedScores', 'weights', 'headsOut', 'merged', 'output'] as const),
] as const satisfies readonly TraceName[];

export type Trace = { readonly [name in (typeof tracedSteps)[number]]: Matrix };

export interface NextWords {
  /**
   * The likeliest words, the first one first, with their shares of 1. `written`: what one adds to the text; empty for what cannot be
   * written, undefined for a word of the words model.
   */
  readonly words: readonly { readonly word: string; readonly share: number; readonly written?: string }[];
  /** The share of all words that its vocabulary lacks. */
  readonly unknown: number;
}

export interface Straight {
  readonly weights: Matrix;
  readonly output: Matrix;
  readonly statistics: HeadStatistics;
}

export interface ForwardResult extends ForwardInput {
  readonly embedDim: number;
  readonly headDim: number;
  readonly weights: ModuleWeights;
  /** The steps that the page shows, as the core computed them. */
  readonly trace: Trace;
  readonly statistics: HeadStatistics;
  /** (N, N): the mean of the weights over the heads. */
  readonly meanWeights: Matrix;
  /** The pass without any bend; null if nothing is bent. */
  readonly straight: Straight | null;
  /** Null if no language model is shown. */
  readonly next: NextWords | null;
  readonly backend: Backend;
  readonly memory: MemoryInfo;
}

export interface AttentionCalls {
  forward(input: ForwardInput): ForwardResult;
  /** One call of attention with one head, for the story. */
  attend(input: AttendInput): Attended;
  /**
   * The median duration in milliseconds of a pass without a trace, on the last input, once the compiler has warmed up.
   * Undefined if another input arrives meanwhile.
   */
  time(): number | undefined;
}
