// The inputs and arrays of a model's calls.

import type { Edit } from './sites.js';

/** A text, or token ids. */
export type ModelInput = string | Int32Array | readonly number[];

/** An image: an `ImageData` of a page, or its bytes, RGB or RGBA, row by row from the top left. Alpha is ignored. */
export interface ModelImage {
  /** (height · width · 3) or (height · width · 4) bytes. */
  readonly data: Uint8Array | Uint8ClampedArray;
  /** Pixels of a row. */
  readonly width: number;
  /** Number of rows. */
  readonly height: number;
}

/** Options of a text. */
export interface EncodeOptions {
  /**
   * True adds the special tokens that the model expects around a text, false adds none: for a text that has them already,
   * such as a rendered chat. Default: true, but a causal model's first one is not added to a text that begins with it.
   * Token ids stay as they are.
   */
  readonly addSpecialTokens?: boolean | undefined;
}

/** Numbers with a shape, row-major. */
export interface ModelArray {
  /** Extents, outermost first. */
  readonly shape: readonly number[];
  /** The numbers, in memory of JavaScript. */
  readonly data: Float32Array<ArrayBuffer>;
}

/** Options of a pass. Arrays, also of token ids, are copied when the call is made: the caller may change them after it. */
export interface PassOptions {
  /**
   * Factor on the output of each head, (numLayers · numHeads) finite numbers; 0 mutes a head. An encoder–decoder model also takes twice as many:
   * then those of cross-attention follow. Default all 1.
   */
  readonly headScales?: Float32Array | undefined;
}

/** Options of all analyses. */
export interface AnalysisOptions extends PassOptions, EncodeOptions {}

/** Options of calls that work on a changed model, too. */
export interface EditedOptions extends AnalysisOptions {
  /** Changes of values inside the model, as {@link Edit} says. Default none. */
  readonly edits?: readonly Edit[] | undefined;
}

/** Options of a pass over one input. */
export interface InputOptions extends EditedOptions {
  /** The second text of a pair. Default none. */
  readonly pair?: string | undefined;
  /** One token type for each id. Default: the types that the tokenizer gives, 0 for token ids and in models with one type. */
  readonly tokenTypes?: Int32Array | readonly number[] | undefined;
  /**
   * Encoder–decoder models, whose input is the encoder's: the decoder's token ids, as they are, or a text, which gets
   * `info.decoderStart` in front. All other outputs and options are the decoder's. Default: `info.decoderStart` alone.
   */
  readonly decoderInput?: ModelInput | undefined;
  /** Encoder–decoder models: changes of values inside the encoder. Default none. */
  readonly encoderEdits?: readonly Edit[] | undefined;
  /** Models with pixels: (channels, imageSize, imageSize) numbers, normalized as the model expects them. */
  readonly pixels?: Float32Array | undefined;
  /**
   * Models with pixels: an image of any size, in place of `pixels`. It is resized, cropped and normalized as the folder's
   * `preprocessor_config.json` says, with the grey values that Pillow and so the transformers library computes.
   */
  readonly image?: ModelImage | undefined;
}
