// Base class of trainers, which make steps: their options, tokens and targets, and what a step gives.

import { noSeed, seedWords } from '../attention/options.js';
import { learningRateDecays, optimizers } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import type { SharedParameters } from '../runtime/memory.js';
import { takeStateDict } from '../modules/state_dict.js';
import { call, checkStatus, type Operands, type Runtime } from '../runtime/operands.js';
import { checkCount, checkNumber, type Names, namesOf } from '../runtime/options.js';
import { choice, count, flag, number, readSettings, type Setting } from '../runtime/settings.js';
import type { BatchOptions, PlainTensor, TrainerOptions, TrainingStep } from '../types/index.js';
import type { Count, Int32, Whole64 } from '../types/wire.js';
import { CoreTrainer, TrainerMemory } from './core_trainer.js';
import { IntegerInput } from './integer_input.js';

export const trainerNames = {
  optimizer: choice(namesOf(optimizers), 'adamW'),
  learningRate: number(1e-3),
  beta1: number(0.9),
  beta2: number(0.999),
  eps: number(1e-8),
  momentum: number(0),
  nesterov: flag(false),
  weightDecay: number(0),
  warmupSteps: count(0, 0),
  decay: choice(namesOf(learningRateDecays), 'constant'),
  decaySteps: count(0, 0),
  finalLearningRate: number(0),
  clipNorm: number(0),
  recompute: flag(false),
  seed: { otherwise: noSeed, read: seedWords } as Setting<Whole64>,
} satisfies Names<TrainerOptions>;

/** Fills in the defaults of options whose names have been checked. Throws `E_OPTION`. */
export function trainerRecord(options: TrainerOptions): wire.TrainerOptions {
  const settings = readSettings(options, trainerNames);
  return { ...settings, optimizer: optimizers[settings.optimizer], decay: learningRateDecays[settings.decay] };
}

const ownName = { argument: 'trainer', noun: 'a trainer' };

/** The arguments of a step, in memory that is kept between steps. */
export interface StepInputs {
  readonly tokens: IntegerInput;
  readonly targets: IntegerInput;
}

/** Cleanup record that also holds the kept copies of the inputs. */
class InputMemory extends TrainerMemory implements StepInputs {
  readonly tokens: IntegerInput;
  readonly targets: IntegerInput;

  constructor(runtime: Runtime, handle: Int32, parameters: SharedParameters) {
    super(runtime, handle, parameters, ownName, () => runtime.raw.trainerRelease(handle));
    this.tokens = new IntegerInput(runtime.heap, 'tokens');
    this.targets = new IntegerInput(runtime.heap, 'targets');
  }

  override get bytes(): number {
    return super.bytes + this.tokens.bytes + this.targets.bytes;
  }

  override free(): void {
    super.free();
    this.tokens.release();
    this.targets.release();
  }
}

/** How a kind of trainer calls the core. No methods of the class: a caller could call them, too. */
export interface StepCalls<Options> {
  /** Copies the options of a step. Throws `E_OPTION`. */
  readonly readStep: (given: Options, name: string) => Options;
  /** Writes the arguments of a step; without `options` and `operands`, it has no option but `batch`. */
  readonly write: (inputs: StepInputs, batch: Count, options?: Options, operands?: Operands) => void;
  /** Runs a step (`updates` is 1) or accumulates a part of one (0). Returns a CallStatus. */
  readonly run: (updates: 0 | 1) => Int32;
}

export abstract class StepTrainer<Options extends BatchOptions> extends CoreTrainer {
  readonly #memory: InputMemory;
  readonly #calls: StepCalls<Options>;

  constructor(runtime: Runtime, handle: Int32, parameters: SharedParameters, calls: StepCalls<Options>) {
    const memory = new InputMemory(runtime, handle, parameters);
    super(runtime, handle, handle, ownName, memory);
    this.#memory = memory;
    this.#calls = calls;
  }

  step(tokens: Int32Array, targets: Int32Array, options?: Options): TrainingStep {
    this.assertLive();
    this.#pass(tokens, targets, options, 1);
    return wire.readTrainingStep(this.runtime.args.results());
  }

  accumulate(tokens: Int32Array, targets: Int32Array, options?: Options): void {
    this.assertLive();
    this.#pass(tokens, targets, options, 0);
  }

  update(): TrainingStep {
    this.simply((raw) => raw.trainerUpdate(this.handle));
    return wire.readTrainingStep(this.runtime.args.results());
  }

  setLearningRate(rate: number): void {
    this.assertLive();
    const checked = checkNumber(rate, 'learningRate');
    this.simply((raw) => raw.trainerSetLearningRate(this.handle, checked));
  }

  gradients(): Record<string, PlainTensor> {
    this.simply((raw) => raw.trainerGradients(this.handle));
    return takeStateDict(this.runtime);
  }

  #pass(tokens: unknown, targets: unknown, given: unknown, updates: 0 | 1): void {
    const { runtime } = this;
    const alone = batchAlone(given);
    if (alone !== undefined) {
      // Fast path without options, so that a loop of small steps allocates nothing on the JavaScript heap but the
      // results.
      const batch = checkCount(alone, 'batch');
      this.#copyIn(tokens, targets);
      this.#calls.write(this.#memory, batch);
      runtime.args.close();
      checkStatus(runtime, this.#run(updates));
      return;
    }
    const options = this.#calls.readStep(given as Options, updates === 1 ? 'step' : 'accumulate');
    const batch = checkCount(options.batch ?? 1, 'batch');
    call(runtime, (operands) => {
      this.#copyIn(tokens, targets);
      this.#calls.write(this.#memory, batch, options, operands);
      operands.run(() => this.#run(updates));
    });
  }

  /** Copies the inputs. Throws `E_OPTION`, `E_MEMORY`, and `E_DISPOSED` if a getter of the options disposed the trainer. */
  #copyIn(tokens: unknown, targets: unknown): void {
    this.assertLive();
    this.#memory.tokens.set(tokens);
    this.#memory.targets.set(targets);
  }

  #run(updates: 0 | 1): Int32 {
    const status = this.#calls.run(updates);
    this.#memory.recount();
    return status;
  }
}

/** Returns `batch` (default 1) of options without any other property; undefined if the options need the full reader. */
function batchAlone(given: unknown): unknown {
  if (given === undefined) return 1;
  if (typeof given !== 'object' || given === null || Object.getPrototypeOf(given) !== Object.prototype) return undefined;
  for (const name in given) if (name !== 'batch') return undefined;
  return (given as BatchOptions).batch ?? 1;
}
