// The functions of the worker of the visitor's own model, their arguments and results.

import type { ModelImage, ModelInfo, ModelWeights } from 'multihead/models';
import type { Matrix } from '../attention/matrix.js';
import type { LayerHeads } from '../attention/messages.js';
import type { DeviceChoice, ModelPlace } from './place.js';
import type { WeightChoice } from './weights.js';

/** The page sends `File` objects, and the worker reads them: the page holds no copy. */
export interface GivenFile {
  /** Path inside of the model's folder. A copy of a `File` has lost it. */
  readonly path: string;
  readonly file: File;
}

export interface GivenFiles {
  /** Name of the folder, or of the file with the weights. */
  readonly name: string;
  readonly files: readonly GivenFile[];
}

export interface OpenedModel {
  readonly info: ModelInfo;
  /** Type of the weights in memory; undefined if as stored. */
  readonly weights: ModelWeights | undefined;
  /** True if there is a tokenizer. Without one the model reads token ids. */
  readonly readsText: boolean;
  /** Reason why the page cannot follow its heads step by step; empty if it can. */
  readonly noSteps: string;
}

/** Bytes of the weights that are read. */
export interface Loading {
  readonly loaded: number;
  readonly total: number;
}

export interface TextAttention {
  readonly ids: readonly number[];
  /** Patches in a row of the picture, which are the last tokens; 0 for text. */
  readonly side: number;
  /** The text of each token; "·" stands for a space. */
  readonly labels: readonly string[];
  /** What a model with encoder and decoder has written; undefined for others. */
  readonly written?: readonly string[];
  /** (layers, heads, N, N), or of cross-attention (layers, heads, written, N). */
  readonly weights: Matrix;
  /** Number of tokens in the text; larger than the length of `ids` if the text is too long. */
  readonly found: number;
  readonly classes: readonly LikelyText[];
}

export interface LikelyText {
  readonly label: string;
  /** Softmax probability. */
  readonly share: number;
}

export interface Next {
  /** New text; empty while a character is incomplete. */
  readonly text: string;
  readonly likeliest: readonly LikelyText[];
  readonly milliseconds: number;
}

/** What each layer would predict after each token, and how likely the model finds each token. L layers, N tokens. */
export interface Lens {
  readonly labels: readonly string[];
  /** (L + 1, N), row-major: the likeliest next tokens by what comes into each layer, and in the last row by the model itself. */
  readonly likeliest: readonly (readonly LikelyText[])[];
  /** (N − 1): natural logarithms of the probabilities of the tokens from the second on. */
  readonly logProbs: readonly number[];
}

export type Two<T> = readonly [T, T];

/** Two texts of N tokens that differ, and two words: the metric is the logit of the first word minus that of the second. */
export interface Pair {
  /** Token ids and their texts. */
  readonly ids: Two<readonly number[]>;
  readonly labels: Two<readonly string[]>;
  readonly tokens: Two<number>;
  readonly words: Two<string>;
  readonly metrics: Two<number>;
  /** (layers, heads): the change by patch('heads') as one gradient estimates it; the reason if there is none. */
  readonly attribution: Matrix | string;
}

/** A part of the model that gets its value from the second text: the output of a head, or the residual stream at a position. */
export type PatchKind = 'heads' | 'positions';

/** The metrics of a patch, (layers, heads) or (layers, N), of which the first `known` ones are known. */
export interface Patched {
  readonly patched: PatchKind;
  readonly known: number;
  readonly values: Matrix;
}

/** The worker sends progress while a call runs. When a call ends, it sends the place where the model computes, if the place has changed. */
export type ModelEvent = Loading | Patched | ModelPlace;

export type Change =
  | { readonly kind: 'scale'; readonly layer: number; readonly head: number; readonly factor: number }
  /** The head gives what it gives at the last token of another text. */
  | { readonly kind: 'swap'; readonly layer: number; readonly head: number; readonly text: string }
  /** Adds the difference of the mean residual streams of two texts before a layer, times a factor. */
  | { readonly kind: 'steer'; readonly layer: number; readonly factor: number; readonly texts: Two<string> };

/** Cosine similarities of texts, (n, n). */
export type Similarities = Matrix;

export interface ModelCalls {
  open(files: GivenFiles, weights: WeightChoice, device: DeviceChoice): OpenedModel;
  abort(): void;
  attend(text: string): TextAttention;
  heads(text: string, layer: number): LayerHeads;
  /** For a model of pictures: the tokens are the class token, registers if there are any, and the patches, row by row. */
  look(image: ModelImage): TextAttention;
  /** Begins a continuation, of the changed model if there is a change. */
  start(text: string, change?: Change): Next | null;
  /** Null after the last token. */
  next(): Next | null;
  compare(texts: readonly string[]): Similarities;
  lens(text: string): Lens;
  /** Begins an experiment. `words`: empty for the likeliest next words. */
  pair(texts: Two<string>, words: Two<string>): Pair;
  /** The metrics of the first text if each part in turn has its value of the second one, which arrive as events, too. */
  patch(kind: PatchKind): Matrix;
  stop(): void;
  /** The likeliest next tokens before and after one part has its value of the second text. */
  changed(kind: PatchKind, layer: number, part: number): Two<readonly LikelyText[]>;
}
