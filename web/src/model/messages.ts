// The functions of the worker of the visitor's own model, their arguments and results.

import type { ModelImage, ModelInfo, ModelWeights } from 'multihead/models';
import type { Matrix } from '../attention/matrix.js';
import type { LayerHeads } from '../attention/messages.js';
import type { WeightChoice } from './weights.js';

/** The page sends `File` objects, and the worker reads them: the page holds no copy. */
export interface GivenFile {
  /** Path inside of the model's folder. A copy of a `File` has lost it. */
  readonly path: string;
  readonly file: File;
}

/** The files of a model. */
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
  /** (layers, heads, N, N). */
  readonly weights: Matrix;
  /** Number of tokens in the text; larger than the length of `ids` if the text is too long. */
  readonly found: number;
  /** The likeliest classes of a classifier. */
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

/** Cosine similarities of texts, (n, n). */
export type Similarities = Matrix;

export interface ModelCalls {
  open(files: GivenFiles, weights: WeightChoice): OpenedModel;
  /** Ends an open() that runs. */
  abort(): void;
  attend(text: string): TextAttention;
  /** The heads of a layer on a text. */
  heads(text: string, layer: number): LayerHeads;
  /** For a model of pictures: the tokens are the class token, registers if there are any, and the patches, row by row. */
  look(image: ModelImage): TextAttention;
  start(text: string): Next | null;
  /** Null after the last token. */
  next(): Next | null;
  compare(texts: readonly string[]): Similarities;
}
