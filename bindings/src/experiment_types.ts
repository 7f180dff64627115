// Two experiments in which heads that start alike specialise by gradient descent alone.

import type { TrainingState, TrainingStep } from './trainer_types.js';
import type { Transformer } from './transformer_types.js';

/**
 * What an experiment's model learns.
 *
 * - `'fourJobs'`: to report four things about every position, each with a readout of its own: the previous
 *   token, the token two back, the latest vowel and the latest star (the token itself included). Sequences of
 *   32 tokens out of 24: 16 plain ones, vowels 16 to 19 and stars 20 to 23. Each of four heads learns one job;
 *   one head of the same size cannot learn all four.
 * - `'induction'`: to continue a sequence of 32 tokens out of 32 that repeats 6 to 16 distinct tokens. It takes
 *   two layers: a head of the first finds the previous token, and one of the last attends to what followed the
 *   earlier occurrence (Olsson et al. 2022, arXiv:2209.11895).
 */
export type ExperimentKind = 'fourJobs' | 'induction';

/** How a model knows the order of tokens: RoPE, learned positions, ALiBi, or only by its causal mask. */
export type PositionKind = 'rope' | 'learned' | 'alibi' | 'none';

/** Options of {@link Multihead.experiment}. Where two defaults are given, the second is that of `'induction'`. */
export interface ExperimentOptions {
  /** Default `'fourJobs'`. */
  readonly kind?: ExperimentKind | undefined;
  /**
   * Default 4 or 2. A divisor of embedDim, 64 or 32, which all heads share: the number of parameters does not
   * depend on it.
   */
  readonly numHeads?: number | undefined;
  /** From 1 to 64. Default 1 or 2. */
  readonly numLayers?: number | undefined;
  /**
   * Of the first parameters and of the data: a whole number from 0 to 2⁶⁴ − 1, beyond 2⁵³ − 1 a bigint.
   * Default 1.
   */
  readonly seed?: number | bigint | undefined;
  /** Default `'rope'`. */
  readonly positions?: PositionKind | undefined;
  /** Steps until {@link Experiment.finished}. Default 600 or 400. */
  readonly steps?: number | undefined;
  /** Sequences of a step, at most 65536. Default 16 or 32. */
  readonly batch?: number | undefined;
  /** Of AdamW, after 50 steps of warm-up; a finite number > 0. Default 0.01. */
  readonly learningRate?: number | undefined;
  /** As of a trainer. Default false. */
  readonly recompute?: boolean | undefined;
}

/** Options of {@link Experiment.evaluate}. */
export interface EvaluationOptions {
  /** The number of held-out sequences, from 1 to 2²⁰. Default 128. */
  readonly sequences?: number | undefined;
  /** Whether to measure {@link Evaluation.attention}. Default true. */
  readonly attention?: boolean | undefined;
  /** Whether to measure {@link Evaluation.mutedAccuracy}: one more forward pass for each head. Default false. */
  readonly ablation?: boolean | undefined;
  /** (numLayers · numHeads), those of layer 0 first: factors on the outputs of heads, 0 to mute one. Default 1. */
  readonly headScales?: Float32Array | undefined;
}

/** Result of {@link Experiment.evaluate}: numbers on the JavaScript heap. */
export interface Evaluation {
  /** Mean cross-entropy in nats. */
  readonly loss: number;
  /** The share of targets that have the largest logit. */
  readonly accuracy: number;
  /** (jobs). The same for each job. */
  readonly jobAccuracy: Float64Array;
  /**
   * (numLayers, numHeads, patterns). Mean attention weight of each head on the keys that a pattern asks for.
   * Empty without the option `attention`.
   */
  readonly attention: Float64Array;
  /** (numLayers · numHeads, jobs). jobAccuracy with one head muted. Empty without the option `ablation`. */
  readonly mutedAccuracy: Float64Array;
  /**
   * (patterns). The head with the most attention on the keys of each pattern, as layer · numHeads + head. For
   * `'induction'` that of the previous token is looked for in the first layer, that of induction in the last.
   * Empty without the option `attention`.
   */
  readonly headOfPattern: readonly number[];
}

/** Result of {@link Experiment.heldOut}: copies on the JavaScript heap. */
export interface HeldOutSequences {
  /** (count · 32) */
  readonly tokens: Int32Array;
  /** (count · 32 · jobs). −1 where a job has no answer yet. */
  readonly targets: Int32Array;
}

/**
 * A model, its data and its trainer. The model has blocks of attention without an MLP and biases, and RMS norms
 * without gains. The data and the first parameters depend only on the kind and the seed, and are those of the native
 * library.
 */
export interface Experiment extends TrainingState {
  /** As given, with every default filled in. */
  readonly options: { readonly [N in keyof ExperimentOptions]-?: Exclude<ExperimentOptions[N], undefined> };
  /** What the model predicts: previous token, two back, latest vowel and latest star; or next token. */
  readonly jobs: readonly string[];
  /** The keys that heads should attend to: those of the four jobs; or previous token and induction. */
  readonly patterns: readonly string[];
  /**
   * What `model.forward` and `model.step` need to compute what the experiment computes: `{ alibi: true }` with
   * ALiBi's positions, else nothing.
   */
  readonly attentionOptions: {
    /** ALiBi with the slopes of the paper. */
    readonly alibi?: true;
  };
  /**
   * The model as it is now, for forward(), step() and stateDict(). It follows the training. Its parameters are the
   * experiment's: loadStateDict(), initialise() and mh.trainer() refuse it. It is disposed with the experiment.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  readonly model: Transformer;
  /**
   * Whether all steps of the options are done; step() may still be called.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  readonly finished: boolean;
  /**
   * Trains on the batch of this step, which depends only on the kind, the seed and the number of the step.
   *
   * @throws {MultiheadError} `E_OPTION` for a loss or gradient that is not finite, and then nothing has changed;
   * `E_DISPOSED`; `E_MEMORY`
   */
  step(): TrainingStep;
  /**
   * Measures the model on held-out sequences, always the same ones for a kind and seed. It does not change the
   * training.
   *
   * @throws {MultiheadError} `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`
   */
  evaluate(options?: EvaluationOptions): Evaluation;
  /**
   * The held-out sequences `first` to `first` + `count` − 1; those of evaluate() are the first.
   *
   * @param first from 0 to 2²⁰
   * @param count from 0 to 2²⁰
   * @throws {MultiheadError} `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  heldOut(first: number, count: number): HeldOutSequences;
}
