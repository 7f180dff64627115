// Two experiments, in which heads with equal starting conditions specialize by gradient descent alone, and statistics of
// heads.

import type { TrainingState, TrainingStep } from './trainer.js';
import type { Transformer } from './transformer.js';

/**
 * The task of an experiment's model.
 * - `'fourJobs'`: to report four things about every position, each with its own readout: the previous token, the token
 *   two back, the latest vowel and the latest star (the token itself included). Sequences of 32 tokens from a
 *   vocabulary of 24: 16 plain tokens, vowels 16 to 19 and stars 20 to 23. Each of four heads learns one job; one head
 *   of the same size cannot learn all four.
 * - `'induction'`: to continue a sequence of 32 tokens from a vocabulary of 32 that repeats 6 to 16 distinct tokens. It
 *   takes two layers: a head in the first finds the previous token, and a head in the last attends to the token after
 *   the earlier occurrence (Olsson et al. 2022, arXiv:2209.11895).
 */
export type ExperimentKind = 'fourJobs' | 'induction';

/** Source of position information: RoPE, learned positions, ALiBi, or only the causal mask. */
export type PositionKind = 'rope' | 'learned' | 'alibi' | 'none';

/** Options of `createExperiment()` of `multihead/lab`. If two defaults are given, the second is for `'induction'`. */
export interface ExperimentOptions {
  /** Default `'fourJobs'`. */
  readonly kind?: ExperimentKind | undefined;
  /**
   * Number of heads, a divisor of embedDim (64 or 32). The heads share embedDim, so the number of parameters does not
   * depend on it. Default 4 or 2.
   */
  readonly numHeads?: number | undefined;
  /** Number of layers, from 1 to 64. Default 1 or 2. */
  readonly numLayers?: number | undefined;
  /**
   * Seed of the initial parameters and of the data: a whole number from 0 to 2⁶⁴ − 1, beyond 2⁵³ − 1 a bigint. Default
   * 1.
   */
  readonly seed?: number | bigint | undefined;
  /** Default `'rope'`. */
  readonly positions?: PositionKind | undefined;
  /** Steps until {@link Experiment.finished}. Default 600 or 400. */
  readonly steps?: number | undefined;
  /** Sequences per step, at most 65536. Default 16 or 32. */
  readonly batch?: number | undefined;
  /** Learning rate of AdamW after 50 steps of warm-up; a finite number > 0. Default 0.01. */
  readonly learningRate?: number | undefined;
  /** See `recompute` of a trainer. Default false. */
  readonly recompute?: boolean | undefined;
}

/** Options of {@link Experiment.evaluate}. */
export interface EvaluationOptions {
  /** The number of held-out sequences, from 1 to 2²⁰. Default 128. */
  readonly sequences?: number | undefined;
  /** Measures {@link Evaluation.attention}. Default true. */
  readonly attention?: boolean | undefined;
  /** Measures {@link Evaluation.mutedAccuracy}: one more forward pass for each head. Default false. */
  readonly ablation?: boolean | undefined;
  /** (numLayers · numHeads), layer 0 first: factors on the outputs of heads, 0 to mute a head. Default 1. */
  readonly headScales?: Float32Array | undefined;
}

/** Result of {@link Experiment.evaluate}: numbers on the JavaScript heap. */
export interface Evaluation {
  /** Mean cross-entropy in nats. */
  readonly loss: number;
  /** The share of targets whose logit is the largest. */
  readonly accuracy: number;
  /** (jobs): accuracy for each job. */
  readonly jobAccuracy: Float64Array;
  /**
   * (numLayers, numHeads, patterns): mean attention weight of each head on the keys of each pattern. Empty without the
   * option `attention`.
   */
  readonly attention: Float64Array;
  /** (numLayers · numHeads, jobs): accuracy for each job with one head muted. Empty without the option `ablation`. */
  readonly mutedAccuracy: Float64Array;
  /**
   * (patterns): the head with the most attention on the keys of each pattern, as layer · numHeads + head. For
   * `'induction'`, the previous-token head is searched in the first layer, the induction head in the last. Empty
   * without the option `attention`.
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
 * A model, its data and its trainer. The model has blocks of attention without an MLP and biases, and RMS norms without
 * gains. The data and the initial parameters depend only on the kind and the seed, and equal the native library's.
 */
export interface Experiment extends TrainingState {
  /** The given options, with every default filled in. */
  readonly options: { readonly [N in keyof ExperimentOptions]-?: Exclude<ExperimentOptions[N], undefined> };
  /** Predictions of the model: previous token, two back, latest vowel and latest star; or next token. */
  readonly jobs: readonly string[];
  /** Patterns of keys that heads should attend to: one for each of the four jobs; or previous token and induction. */
  readonly patterns: readonly string[];
  /**
   * Options to pass to `model.forward` and `model.step` so that they compute the same as the experiment: `{ alibi: true
   * }` if positions are `'alibi'`, else none.
   */
  readonly attentionOptions: {
    /** ALiBi with the slopes of the paper. */
    readonly alibi?: true;
  };
  /**
   * The current model, for forward(), step() and stateDict(). It follows the training. The experiment owns its
   * parameters, so loadStateDict(), initialize() and mh.trainer() throw. It is disposed with the experiment.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  readonly model: Transformer;
  /**
   * True once all steps of the options are done; step() may still be called.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  readonly finished: boolean;
  /**
   * Trains on the batch of this step, which depends only on the kind, the seed and the step number.
   *
   * @throws {MultiheadError} `E_OPTION` for a loss or gradient that is not finite; the experiment is then unchanged;
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
   * Returns the held-out sequences `first` to `first` + `count` − 1. evaluate() uses the sequences from 0 on.
   *
   * @param first from 0 to 2²⁰
   * @param count from 0 to 2²⁰
   * @throws {MultiheadError} `E_OPTION`, `E_DISPOSED`, `E_MEMORY`
   */
  heldOut(first: number, count: number): HeldOutSequences;
}

/** Options of `headStatistics()` of `multihead/lab`. */
export interface HeadStatisticsOptions {
  /** (B · N_k): the token id of each key, required for `induction`. Default none. */
  readonly tokens?: Int32Array | undefined;
}

/**
 * Statistics of the attention weights, one number for each of the H heads: the mean over the batch and
 * over those queries that the definition names, or 0 if there are none. Query i is at position
 * i + N_k − N_q.
 */
export interface HeadStatistics {
  /** −Σ w ln w: 0 if one key has all the weight, ln n if n keys have equal weights. All queries. */
  readonly entropy: Float32Array;
  /** Weight on the key just before the query's position. Queries at positions ≥ 1. */
  readonly previousToken: Float32Array;
  /** Weight on key 0. Queries at positions ≥ 1. */
  readonly firstToken: Float32Array;
  /**
   * Weight on the keys that directly follow an earlier occurrence of the query's token (Olsson et al.
   * 2022, arXiv:2209.11895). Queries whose token occurred before. Missing without `tokens`.
   */
  readonly induction?: Float32Array;
}
