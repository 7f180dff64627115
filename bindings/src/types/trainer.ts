// Training of transformers.

import type { ForwardOptions, StateDict } from './module.js';
import type { DisposableObject, PlainTensor } from './tensor.js';

/** `'adamW'` (arXiv:1711.05101, as `torch.optim.AdamW`) or `'sgd'` with momentum (as `torch.optim.SGD`). */
export type Optimizer = 'adamW' | 'sgd';

/** The learning rate after the warm-up: constant, or half a cosine (arXiv:1608.03983). */
export type LearningRateDecay = 'constant' | 'cosine';

/** Options of {@link Multihead.trainer}. */
export interface TrainerOptions {
  /** Default `'adamW'`. */
  readonly optimizer?: Optimizer | undefined;
  /** A finite number > 0. Default 1e−3. */
  readonly learningRate?: number | undefined;
  /** Decay of AdamW's mean of gradients, 0 ≤ β < 1. Default 0.9. */
  readonly beta1?: number | undefined;
  /** Decay of AdamW's mean of squared gradients, 0 ≤ β < 1. Default 0.999. */
  readonly beta2?: number | undefined;
  /** Epsilon of AdamW, a finite number > 0. Default 1e−8. */
  readonly eps?: number | undefined;
  /** Momentum m of SGD, 0 ≤ m < 1; with AdamW any value but 0 is an error. Default 0. */
  readonly momentum?: number | undefined;
  /** Nesterov momentum of SGD; requires `momentum`. Default false. */
  readonly nesterov?: boolean | undefined;
  /**
   * Weight decay: decoupled in AdamW, added to the gradients in SGD; a finite number ≥ 0. Applies only to matrices and
   * embeddings, not to biases, gains of norms and sinks. Default 0.
   */
  readonly weightDecay?: number | undefined;
  /** Step s of the first `warmupSteps`, counted from 1, has the learning rate `learningRate` · s / `warmupSteps`. Default 0. */
  readonly warmupSteps?: number | undefined;
  /** Default `'constant'`. */
  readonly decay?: LearningRateDecay | undefined;
  /** Steps of the cosine, after the warm-up; ≥ 1 for `'cosine'`. Default 0. */
  readonly decaySteps?: number | undefined;
  /** The learning rate at the end of the cosine and after it, a finite number ≥ 0. Default 0. */
  readonly finalLearningRate?: number | undefined;
  /**
   * Scales all gradients down to this norm if their common norm is larger; a finite number ≥ 0, 0 for no limit. Default
   * 0.
   */
  readonly clipNorm?: number | undefined;
  /**
   * True: the backward pass recomputes activations layer by layer, which takes about a third more time and needs the
   * memory of one layer. False: activations of all layers are kept from the forward pass. Both are bit-identical.
   * Default false.
   */
  readonly recompute?: boolean | undefined;
  /** Seed of dropout: a whole number from 0 to 2⁶⁴ − 1, beyond 2⁵³ − 1 a bigint. Default 0. */
  readonly seed?: number | bigint | undefined;
}

/** Result of {@link Trainer.step} and {@link TrainerBase.update}. */
export interface TrainingStep {
  /** Number of updates so far, this one included. */
  readonly step: number;
  /** Mean cross-entropy over the counted targets, in nats, before the update. */
  readonly loss: number;
  /** Norm of all gradients together, before clipping. */
  readonly gradientNorm: number;
  /** The learning rate of this update, rounded to 32 bits. */
  readonly learningRate: number;
  /** Number of targets that are not −1. */
  readonly counted: number;
  /** Number of counted targets whose logit was the largest. */
  readonly correct: number;
}

/** Options of a step that every trainer has. */
export interface BatchOptions {
  /** Number of sequences of equal length in `tokens`, one after the other. Default 1. */
  readonly batch?: number | undefined;
}

/**
 * Options of {@link Trainer.step} and {@link Trainer.accumulate}: the options of {@link Transformer.forward} that
 * change the model's function.
 */
export interface TrainerStepOptions extends BatchOptions, Omit<ForwardOptions, 'causal' | 'return' | 'trace' | 'out' | 'training' | 'dropoutSeed'> {}

/**
 * A {@link Trainer}, or an {@link Experiment} with its trainer: a training continues from its state. dispose() does not free the
 * parameters of a trainer's model.
 */
export interface TrainingState extends DisposableObject {
  /**
   * Number of updates so far.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  steps(): number;
  /**
   * Size in bytes of parameters, gradients, the optimizer's state, activations, and copies of tokens and targets; part
   * of {@link MemoryInfo.bytes}, which counts shared parameters once. It grows to the largest call and stays.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  bytes(): number;

  /**
   * Copies the state of the training: the parameters under their names; the optimizer's state under the same names with
   * the prefixes `optimizer.mean.` and `optimizer.variance.` (SGD with momentum: `optimizer.momentum.`); and
   * `trainer.state` (8), the number of steps and the seed, each as four digits of 16 bits, lowest first. An experiment
   * adds `run.heads` (1) and `run.positions` (1), which must match the experiment that restores the state.
   *
   * @throws {MultiheadError} `E_OPTION` between accumulate() and update(); `E_DISPOSED`; `E_MEMORY`
   */
  stateDict(): Record<string, PlainTensor>;
  /**
   * Restores a stateDict() of an equal model. With equal options, training then continues with the same bits as if it
   * had not been interrupted. Other tensors whose names begin with `run.`, such as the curve in a checkpoint of
   * `multihead-train`, are ignored.
   *
   * @throws {MultiheadError} `E_SHAPE`, one error that names every missing, unexpected and misshaped tensor; `E_OPTION`
   * for a value that is not a tensor of floats, for the state of an experiment with other heads or positions, and
   * between accumulate() and update(); `E_DISPOSED`; `E_MEMORY`. A call that throws changes nothing.
   */
  loadStateDict(dict: StateDict): void;
  /**
   * stateDict() as a safetensors file, which the native library and `multihead-train` read and write too.
   *
   * @throws {MultiheadError} as {@link TrainingState.stateDict}
   */
  checkpoint(): Uint8Array<ArrayBuffer>;
  /**
   * Restores a checkpoint().
   *
   * @throws {MultiheadError} `E_FORMAT` for a file that is truncated or malformed, and the errors of
   * {@link TrainingState.loadStateDict}. A call that throws changes nothing.
   */
  restore(checkpoint: Uint8Array | ArrayBuffer): void;
}

/** All trainers have these members, whatever they train. `Options` are the options of a step. */
export interface TrainerBase<Options> extends TrainingState {
  /**
   * Makes one update from one batch: accumulate(), then update(). Bit-identical in every run of the same build.
   *
   * @param tokens (batch · N) token ids, row-major, each from 0 to vocabSize − 1
   * @param targets (batch · N), and of a transformer with readouts (batch · N · numReadouts): the correct class of each
   * prediction, from 0 to vocabSize − 1, or −1 for a prediction that does not count
   * @throws {MultiheadError} `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`; `E_OPTION`, also if no target counts, and for a loss
   * or gradient that is not finite; the message names the step, and the first parameter that is not finite, if there is
   * one. A call that throws leaves parameters and optimizer unchanged.
   */
  step(tokens: Int32Array, targets: Int32Array, options?: Options): TrainingStep;
  /**
   * Adds the gradients of one part of a batch, for one update() from several parts. The loss of the update is the mean
   * over the targets of all parts.
   *
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`; `E_MEMORY`, which may discard the accumulated
   * gradients
   */
  accumulate(tokens: Int32Array, targets: Int32Array, options?: Options): void;
  /**
   * Updates the parameters with the accumulated gradients, and resets these.
   *
   * @throws {MultiheadError} `E_OPTION` if no target was counted, or for a gradient that is not finite, naming its
   * parameter: the gradients are then discarded, and the rest is unchanged; `E_DISPOSED`
   */
  update(): TrainingStep;
  /**
   * Replaces the option `learningRate` from the next step on.
   *
   * @throws {MultiheadError} `E_OPTION` unless it is a finite number > 0; `E_DISPOSED`
   */
  setLearningRate(rate: number): void;
  /**
   * Copies the accumulated gradients since the last update, under the names of the parameters. The loss is the sum, not
   * the mean, over the counted targets.
   *
   * @throws {MultiheadError} `E_DISPOSED`, `E_MEMORY`
   */
  gradients(): Record<string, PlainTensor>;
}

/**
 * Trains a {@link Transformer} to predict targets by gradient descent on their cross-entropy. It changes the parameters
 * of the model in place. Model and trainer share the parameters: disposing one does not affect the other. Once the
 * model has loaded or initialized other parameters, a step throws `E_OPTION`: make a new trainer.
 */
export interface Trainer extends TrainerBase<TrainerStepOptions> {}
