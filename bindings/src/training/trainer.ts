// mh.trainer: a handle to a trainer in the core.

import { noSeed, seedWords } from '../attention/options.js';
import { learningRateDecays, optimizers } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import type { SharedParameters } from '../modules/core_module.js';
import { forwardNames, moduleOptions, noModuleOptions } from '../modules/options.js';
import { takeStateDict } from '../modules/state_dict.js';
import { WasmTransformer } from '../modules/transformer.js';
import { isCoreObject } from '../runtime/core_object.js';
import { optionError } from '../runtime/errors.js';
import type { Heap } from '../runtime/memory.js';
import { call, checkStatus, type Runtime } from '../runtime/operands.js';
import { checkCount, checkNumber, type Names, namesOf, plain, readOptions, without } from '../runtime/options.js';
import { choice, count, flag, number, readSettings, type Setting } from '../runtime/settings.js';
import { describe } from '../runtime/tensor.js';
import type {
  PlainTensor,
  Trainer,
  TrainerOptions,
  TrainerStepOptions,
  TrainingStep,
  Transformer,
} from '../types/index.js';
import type { Count, Int32, Whole64 } from '../types/wire.js';
import { CoreTrainer, TrainerMemory } from './core_trainer.js';
import { IntegerInput } from './integer_input.js';

const schema = {
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

const ownName = { argument: 'trainer', noun: 'a trainer' };

const inForward = 'call forward() of the model for results';
const elsewhere = {
  ...{ causal: "it is the model's", return: inForward, trace: inForward, out: inForward },
  ...{ training: 'a trainer always trains', dropoutSeed: "the trainer's seed decides it" },
};
const stepNames = { ...without(forwardNames, elsewhere), batch: plain } satisfies Names<TrainerStepOptions>;

/** Cleanup record that also holds the kept copies of the inputs. */
class InputMemory extends TrainerMemory {
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

export class WasmTrainer extends CoreTrainer implements Trainer {
  readonly #memory: InputMemory;
  readonly #config: WasmTransformer['config'];

  constructor(runtime: Runtime, model: Transformer, given: TrainerOptions = {}) {
    const record = optionsRecord(readOptions(given, schema, 'trainer'));
    const own = ownModel(model, runtime.heap);
    const { parameters } = own;
    const { args, raw } = runtime;
    const handle = call(runtime, (operands) => {
      wire.trainerOptions(args, record);
      return operands.make(() => raw.trainerCreate(own.handle));
    });
    const memory = new InputMemory(runtime, handle, parameters);
    super(runtime, handle, handle, ownName, memory);
    this.#memory = memory;
    this.#config = own.config;
    Object.freeze(this);
  }

  step(tokens: Int32Array, targets: Int32Array, options?: TrainerStepOptions): TrainingStep {
    this.assertLive();
    this.#pass(tokens, targets, options, 'step');
    return wire.readTrainingStep(this.runtime.args.results());
  }

  accumulate(tokens: Int32Array, targets: Int32Array, options?: TrainerStepOptions): void {
    this.assertLive();
    this.#pass(tokens, targets, options, 'accumulate');
  }

  update(): TrainingStep {
    this.assertLive();
    this.simply((raw) => raw.trainerUpdate(this.handle));
    return wire.readTrainingStep(this.runtime.args.results());
  }

  setLearningRate(rate: number): void {
    this.assertLive();
    const checked = checkNumber(rate, 'learningRate');
    this.simply((raw) => raw.trainerSetLearningRate(this.handle, checked));
  }

  gradients(): Record<string, PlainTensor> {
    this.assertLive();
    this.simply((raw) => raw.trainerGradients(this.handle));
    return takeStateDict(this.runtime);
  }

  #pass(tokens: unknown, targets: unknown, given: unknown, name: 'step' | 'accumulate'): void {
    const { runtime } = this;
    const alone = batchAlone(given);
    if (alone !== undefined) {
      // Fast path without options, so that a loop of small steps allocates nothing on the JavaScript heap but the
      // results.
      const batch = checkCount(alone, 'batch');
      this.#copyIn(tokens, targets);
      this.#write(batch, noModuleOptions);
      runtime.args.close();
      checkStatus(runtime, this.#run(name));
      return;
    }
    const options = readOptions(given as TrainerStepOptions, stepNames, name, elsewhere);
    const batch = checkCount(options.batch ?? 1, 'batch');
    call(runtime, (operands) => {
      this.#copyIn(tokens, targets);
      const { numHeads: heads, headDim: width } = this.#config;
      const queries = this.#memory.tokens.length / batch;
      const extents = { batch, heads, queries, keys: queries, width };
      this.#write(batch, moduleOptions(options, operands, extents));
      operands.run(() => this.#run(name));
    });
  }

  /** Copies the inputs. Throws `E_OPTION`, `E_MEMORY`, and `E_DISPOSED` if a getter of the options disposed the trainer. */
  #copyIn(tokens: unknown, targets: unknown): void {
    this.assertLive();
    this.#memory.tokens.set(tokens);
    this.#memory.targets.set(targets);
  }

  #write(batch: Count, options: wire.ModuleOptions): void {
    const { tokens, targets } = this.#memory;
    wire.training(this.runtime.args, tokens, batch, targets, options);
  }

  /** Runs the step; returns a CallStatus. */
  #run(name: 'step' | 'accumulate'): Int32 {
    const { raw } = this.runtime;
    const { handle } = this;
    const status = raw._multihead_train(handle, name === 'step' ? 1 : 0);
    this.#memory.recount();
    return status;
  }
}

/** Returns `batch` (default 1) of options without any other property; undefined if the options need the full reader. */
function batchAlone(given: unknown): unknown {
  if (given === undefined) return 1;
  if (typeof given !== 'object' || given === null || Object.getPrototypeOf(given) !== Object.prototype) return undefined;
  for (const name in given) if (name !== 'batch') return undefined;
  return (given as TrainerStepOptions).batch ?? 1;
}

/** Throws `E_OPTION`. */
function ownModel(given: unknown, heap: Heap): WasmTransformer {
  const isModel = isCoreObject(given) && given instanceof WasmTransformer;
  if (isModel && given.livesIn(heap)) {
    given.assertOwnParameters('a trainer');
    given.takeAll();
    return given;
  }
  throw optionError(
    'model',
    'one made by transformer() of the same load()',
    isModel ? 'one of another' : describe(given),
  );
}

/** Fills in the defaults of options whose names have been checked. Throws `E_OPTION`. */
function optionsRecord(options: TrainerOptions): wire.TrainerOptions {
  const settings = readSettings(options, schema);
  const { optimizer, decay } = settings;
  return { ...settings, optimizer: optimizers[optimizer], decay: learningRateDecays[decay] };
}
