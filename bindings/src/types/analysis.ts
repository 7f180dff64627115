// Questions to a language model about what its parts do.

import type { AnalysisOptions, EditedOptions, ModelArray, ModelInput } from './model_input.js';
import type { PlatformAbortSignal } from './platform.js';
import type { Capture, Site } from './sites.js';

/** A token: its id, or a text that is one token of the folder's tokenizer, such as `' Paris'`. */
export type Token = number | string;

/** The difference of two logits. */
export interface LogitDifference {
  /** The token whose logit counts. */
  readonly token: Token;
  /** The token whose logit is subtracted. */
  readonly against: Token;
  /** After which token of the input, from 0; negative from the end. Default −1, the last one. */
  readonly position?: number | undefined;
}

/** The natural logarithm of a token's probability. */
export interface LogProbability extends Omit<LogitDifference, 'against'> {
  /** With it, the metric is a {@link LogitDifference}. */
  readonly against?: undefined;
}

/** The mean of the log-probabilities of all tokens from the second on, each given those before it: minus a language model's loss. */
export interface MeanLogProbability {
  /** Always true. */
  readonly meanLogProb: true;
}

/**
 * A function of the logits (vocabSize) after the last token. Where a gradient is needed, it gets `gradient` (vocabSize), zeros,
 * and adds the derivative of its result by each logit.
 */
export type MetricFunction = (logits: Float32Array<ArrayBuffer>, gradient?: Float32Array<ArrayBuffer>) => number;

/** A number that tells how a model continues an input. */
export type Metric = LogitDifference | LogProbability | MeanLogProbability | MetricFunction;

/** Options of {@link ModelAnalyses.lens}. */
export interface LensOptions extends EditedOptions {
  /** Layers whose input is read, from 0; `numLayers` is the output of the last one. Default all of these. */
  readonly layers?: readonly number[] | undefined;
  /** Number of likeliest tokens, 0 to 100. Default 5. */
  readonly top?: number | undefined;
  /** Tokens whose ranks are wanted. Default none. */
  readonly tokens?: readonly Token[] | undefined;
  /** True gives all logits, too, which need memory for layers · N · vocabSize numbers. Default false. */
  readonly logits?: boolean | undefined;
}

/** The result of {@link ModelAnalyses.lens}: L layers, N tokens. */
export interface LensResult {
  /** The layers. */
  readonly layers: readonly number[];
  /** Token ids of the input. */
  readonly inputIds: Int32Array;
  /** (L, N, top): ids of the likeliest tokens, the likeliest first. */
  readonly ids: Int32Array;
  /** (L, N, top): probabilities of these. */
  readonly probabilities: Float32Array<ArrayBuffer>;
  /** (L, N, tokens): for each of the `tokens`, how many tokens are likelier. */
  readonly ranks: Int32Array;
  /** (L, N, tokens): probabilities of these. */
  readonly tokenProbabilities: Float32Array<ArrayBuffer>;
  /** (L, N, vocabSize), if they were asked for. */
  readonly logits?: ModelArray;
}

/** The result of {@link ModelAnalyses.logProbs}. */
export interface LogProbs {
  /** The N − 1 tokens from the second on. */
  readonly ids: Int32Array;
  /** (N − 1): natural logarithms of their probabilities, given the tokens before. */
  readonly values: Float32Array<ArrayBuffer>;
  /** (N − 1): how many tokens are likelier. */
  readonly ranks: Int32Array;
}

/** The result of {@link ModelAnalyses.logitAttribution}. The sum of all parts is the metric. */
export interface LogitAttribution {
  /** (numLayers, numHeads): what each head adds. */
  readonly heads: ModelArray;
  /** (numLayers): what each MLP adds, with its bias. */
  readonly mlp: Float32Array<ArrayBuffer>;
  /** What the input of layer 0 adds. */
  readonly embedding: number;
  /** What the biases of output projections, of the final norm and of the output add. */
  readonly rest: number;
  /** The difference of the logits. */
  readonly metric: number;
}

/** How parts of a site are replaced: all of a layer at once, each head, or each position. */
export type By = 'layer' | 'head' | 'position';

/** Which parts are replaced. */
export interface PartOptions extends AnalysisOptions {
  /** Which value. Default `'z'` by heads, else `'resid_pre'`. */
  readonly site?: Site | undefined;
  /** Default `'head'`, which needs `q`, `k`, `v` or `z`. */
  readonly by?: By | undefined;
}

/** Options of calls that run the model for each part. */
export interface SweepOptions extends AnalysisOptions {
  /**
   * Called with the share that is done, 0 to 1, and the values so far: those of runs to come are 0, and each of several texts adds
   * its share. Default none.
   */
  readonly onProgress?: ((done: number, values: ModelArray) => void) | undefined;
  /** Aborting rejects with `E_ABORTED`. Default none. */
  readonly signal?: PlatformAbortSignal | undefined;
}

/** Options of {@link ModelAnalyses.patch}. */
export interface PatchOptions extends PartOptions, SweepOptions {}

/** Options of {@link ModelAnalyses.attributionPatch}. */
export interface AttributionPatchOptions extends PartOptions {
  /** True gives the estimates for each position by itself: one more axis of values. Default false. */
  readonly positions?: boolean | undefined;
}

/** Options of {@link ModelAnalyses.ablate}. */
export interface AblateOptions extends SweepOptions {
  /** What takes the place of a head's output: zeros, or its mean over all tokens of all texts. Default `'zero'`. */
  readonly ablation?: 'zero' | 'mean' | undefined;
  /** The heads: of self-attention, or `'cross_z'` of cross-attention. Default `'z'`. */
  readonly site?: 'z' | 'cross_z' | undefined;
  /** Encoder–decoder models need it: what the decoder has for each text, as {@link InputOptions.decoderInput}. The metric is about it. */
  readonly decoderInputs?: readonly ModelInput[] | undefined;
}

/** A result for each part of each layer. */
export interface PartResults {
  /** The metric of the clean run. */
  readonly clean: number;
  /** (numLayers, parts): the metric, or its estimated change, with another value of each part. */
  readonly values: ModelArray;
}

/** A result for each part of each layer, of two inputs. */
export interface PairResults extends PartResults {
  /** The metric of the corrupt run. */
  readonly corrupt: number;
}

/** A value whose gradient is wanted. */
export type GradientPlace = Omit<Capture, 'heads'>;

/**
 * Analyses of causal language models. They run where the model lives: on the calling thread, in its workers, or on the GPU of device
 * `'gpu'`; of `'auto'` on the GPU if it was faster in all passes so far. `logitAttribution`, `attributionPatch` and `gradients` need
 * the calling thread, and a model in workers or with device `'gpu'` rejects them. A difference of logits is exact there, and elsewhere
 * that of the two logits. All of them throw {@link MultiheadError}: `E_OPTION` for another model, a metric that names no token, a place
 * that the model does not have, and results that are not finite; `E_SHAPE`, `E_MEMORY`, `E_DISPOSED`.
 */
export interface ModelAnalyses {
  /**
   * What each layer would predict (logit lens): the final norm, the output matrix and the softmax of the residual stream before each
   * layer. nostalgebraist, "interpreting GPT: the logit lens", 2020.
   */
  lens(input: ModelInput, options?: LensOptions): Promise<LensResult>;
  /** How the model rates each token of the input. */
  logProbs(input: ModelInput, options?: EditedOptions): Promise<LogProbs>;
  /** The metric of an input. */
  measure(input: ModelInput, metric: Metric, options?: EditedOptions): Promise<number>;
  /**
   * What each head, each MLP and the embedding add to a difference of logits, with the final norm at the scale of this run (direct
   * logit attribution, Elhage et al., 2021). Not for models that norm what attention and MLP add, or that cap their logits, where
   * the sum would not be exact.
   */
  logitAttribution(input: ModelInput, metric: LogitDifference, options?: AnalysisOptions): Promise<LogitAttribution>;
  /**
   * Activation patching (arXiv:2404.15255): the metric of the clean input in runs in which one part of a layer has the value that it
   * has with the corrupt input, which is equally long. Layers before the part are not computed again, and other calls of the
   * thread get their turn between runs.
   */
  patch(clean: ModelInput, corrupt: ModelInput, metric: Metric, options?: PatchOptions): Promise<PairResults>;
  /**
   * Attribution patching (Nanda, 2023; arXiv:2310.10348): first-order estimates of how much patch() would change the metric, for all
   * parts at once, of two passes and one backward pass. Values are (numLayers, parts), or (numLayers, parts, N) with `positions`.
   */
  attributionPatch(clean: ModelInput, corrupt: ModelInput, metric: Metric, options?: AttributionPatchOptions): Promise<PairResults>;
  /**
   * The mean of the metric over the texts, in runs without each head in turn, also for an encoder–decoder model. Values are
   * (numLayers, numHeads).
   */
  ablate(texts: readonly ModelInput[], metric: Metric, options?: AblateOptions): Promise<PartResults>;
  /** The gradients of the metric with respect to values inside the model, in the shapes of the sites. */
  gradients(input: ModelInput, metric: Metric, places: readonly GradientPlace[], options?: AnalysisOptions): Promise<readonly ModelArray[]>;
}
