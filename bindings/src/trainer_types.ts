// Training of transformers.

import type { ForwardOptions, StateDict } from './module_types.js';
import type { PlainTensor } from './tensor_types.js';

/** `'adamW'` (arXiv:1711.05101, as `torch.optim.AdamW`) or `'sgd'` with momentum (as `torch.optim.SGD`). */
export type Optimiser = 'adamW' | 'sgd';

/** The learning rate after the warm-up: constant, or half a cosine (arXiv:1608.03983). */
export type LearningRateDecay = 'constant' | 'cosine';

/** Options of {@link Multihead.trainer}. */
export interface TrainerOptions {
  /** Default `'adamW'`. */
  readonly optimiser?: Optimiser | undefined;
  /** A finite number > 0. Default 1e−3. */
  readonly learningRate?: number | undefined;
  /** Decay of AdamW's mean of gradients, 0 ≤ β < 1. Default 0.9. */
  readonly beta1?: number | undefined;
  /** Decay of AdamW's mean of squared gradients, 0 ≤ β < 1. Default 0.999. */
  readonly beta2?: number | undefined;
  /** Of AdamW, a finite number ≥ 0. Default 1e−8. */
  readonly epsilon?: number | undefined;
  /** Of SGD, 0 ≤ m < 1; an error with AdamW unless it is 0. Default 0. */
  readonly momentum?: number | undefined;
  /** Of SGD; needs `momentum`. Default false. */
  readonly nesterov?: boolean | undefined;
  /**
   * Decoupled in AdamW, added to the gradients in SGD; a finite number ≥ 0. Only matrices and embeddings
   * decay; biases, gains of norms and sinks do not. Default 0.
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
   * If the norm over all gradients is larger, they are scaled down to this norm; a finite number ≥ 0,
   * 0 for no limit. Default 0.
   */
  readonly clipNorm?: number | undefined;
  /**
   * False: keeps the activations of all layers from the forward to the backward pass. True: computes them
   * again layer by layer, for about a third more time and the memory of one layer. Same bits. Default false.
   */
  readonly recompute?: boolean | undefined;
  /** Seed of dropout: a whole number from 0 to 2⁶⁴ − 1, beyond 2⁵³ − 1 a bigint. Default 0. */
  readonly seed?: number | bigint | undefined;
}

/** Result of {@link Trainer.step} and {@link Trainer.update}. */
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
  /** Of those, the number for which the target had the largest logit. */
  readonly correct: number;
}

/**
 * Options of {@link Trainer.step} and {@link Trainer.accumulate}: those of {@link Transformer.forward}
 * that change the model's function.
 */
export interface TrainerStepOptions extends Omit<
  ForwardOptions,
  'causal' | 'return' | 'trace' | 'out' | 'training' | 'dropoutSeed'
> {
  /** Number of sequences of equal length in `tokens`, one after the other. Default 1. */
  readonly batch?: number | undefined;
}

/** The state from which a training continues: that of a {@link Trainer}, or of an {@link Experiment} and its trainer. */
export interface TrainingState {
  /**
   * Number of updates so far.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  readonly steps: number;
  /**
   * Size in bytes of parameters, gradients, the optimiser's state, activations, and copies of tokens and
   * targets; part of {@link MemoryInfo.bytes}, which counts shared parameters once. It grows to the largest
   * call and stays.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  readonly bytes: number;
  /** Whether dispose() was called. */
  readonly disposed: boolean;

  /**
   * Copies of what continues the training: the parameters under their names; under those with
   * `optimiser.mean.` and `optimiser.variance.` before them (SGD with momentum: `optimiser.momentum.`) the
   * state of the optimiser; and `trainer.state` (8), the number of steps and the seed, each as four digits
   * of 16 bits, lowest first. An experiment adds `run.heads` (1) and `run.positions` (1), which must be those of the
   * experiment that takes the state over.
   *
   * @throws {MultiheadError} `E_OPTION` between accumulate() and update(); `E_DISPOSED`; `E_MEMORY`
   */
  stateDict(): Record<string, PlainTensor>;
  /**
   * Takes over what stateDict() gave for an equal model. With equal options, training then continues with
   * the same bits as if it had not been interrupted. Other tensors whose names begin with `run.`, such as the curve in
   * a checkpoint of `multihead-train`, are ignored.
   *
   * @throws {MultiheadError} `E_SHAPE`, one error that names every missing, unexpected and misshaped tensor;
   * `E_OPTION` for a value that is not a tensor of floats, for the state of an experiment with other heads or positions,
   * and between accumulate() and update();
   * `E_DISPOSED`; `E_MEMORY`. A call that throws changes nothing.
   */
  loadStateDict(dict: StateDict): void;
  /**
   * stateDict() as a safetensors file, which the native library and `multihead-train` read and write too.
   *
   * @throws {MultiheadError} as {@link TrainingState.stateDict}
   */
  checkpoint(): Uint8Array<ArrayBuffer>;
  /**
   * Takes over a checkpoint().
   *
   * @throws {MultiheadError} `E_FORMAT` for a file that is truncated or malformed; and as
   * {@link TrainingState.loadStateDict}. A call that throws changes nothing.
   */
  restore(checkpoint: Uint8Array | ArrayBuffer): void;
  /** Frees what only this object holds: a trainer's model keeps the parameters. A second call does nothing. */
  dispose(): void;
  /** As dispose(), for `using`. */
  [Symbol.dispose](): void;
}

/**
 * Trains a {@link Transformer} to predict targets by gradient descent on their cross-entropy. It changes the
 * parameters of the model itself, which both share: disposing one does not change the other, and if the
 * model loads or initialises other parameters, the trainer keeps to the old ones.
 */
export interface Trainer extends TrainingState {
  /**
   * One update from one batch: accumulate(), then update(). The same bits in every run of the same build.
   *
   * @param tokens (batch · N) token ids, row-major, each from 0 to vocabSize − 1
   * @param targets (batch · N · numReadouts): the class that each prediction should give, from 0 to
   * vocabSize − 1, or −1 for one that does not count
   * @throws {MultiheadError} `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`; `E_OPTION`, also if no target counts, and
   * for a loss or gradient that is not finite, naming the step and the first parameter that is not
   * finite, if one is. A call that throws leaves parameters and optimiser unchanged.
   */
  step(tokens: Int32Array, targets: Int32Array, options?: TrainerStepOptions): TrainingStep;
  /**
   * Adds the gradients of a part of a batch, for one update() from several parts. The loss of the update is
   * the mean over the targets of all parts.
   *
   * @throws {MultiheadError} `E_SHAPE`, `E_OPTION`, `E_DISPOSED`; `E_MEMORY`, which may forget the gradients
   * so far
   */
  accumulate(tokens: Int32Array, targets: Int32Array, options?: TrainerStepOptions): void;
  /**
   * Changes the parameters by the gradients so far, and forgets these.
   *
   * @throws {MultiheadError} `E_OPTION` if no target was counted, or for a gradient that is not finite,
   * naming its parameter: the gradients are then forgotten, and the rest is unchanged; `E_DISPOSED`
   */
  update(): TrainingStep;
  /**
   * Replaces the option `learningRate` from the next step on.
   *
   * @throws {MultiheadError} `E_OPTION` unless it is a finite number > 0; `E_DISPOSED`
   */
  setLearningRate(rate: number): void;
  /**
   * Copies of the gradients since the last update, of the sum of the loss over the counted targets, under
   * the names of the parameters.
   *
   * @throws {MultiheadError} `E_DISPOSED`, `E_MEMORY`
   */
  gradients(): Record<string, PlainTensor>;
}
