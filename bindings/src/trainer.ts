// mh.trainer: a handle to a trainer in the core.

import { seedWords } from './attention_options.js';
import { CoreObject, isCoreObject } from './core_object.js';
import { MultiheadError } from './errors.js';
import { IntegerInput } from './integer_input.js';
import { forwardNames, moduleOptions, noModuleOptions } from './layer_options.js';
import type { Heap, Holding } from './memory.js';
import { call, checkStatus, type Runtime } from './operands.js';
import {
  checkChoice,
  checkCount,
  checkFlag,
  checkNumber,
  namesOf,
  readOptions,
} from './options.js';
import { readSafetensors } from './read_safetensors.js';
import type { SharedParameters } from './shared_parameters.js';
import { pushStateDict, takeStateDict } from './state_dict.js';
import { learningRateDecays, optimisers } from './tables.js';
import { describe } from './tensor.js';
import { WasmTransformer } from './transformer.js';
import type {
  LearningRateDecay,
  Optimiser,
  PlainTensor,
  StateDict,
  Trainer,
  TrainerOptions,
  TrainerStepOptions,
  TrainingStep,
  Transformer,
} from './types.js';
import * as wire from './wire.js';
import { writeSafetensors } from './write_safetensors.js';

const optimiserNames = namesOf(optimisers) satisfies readonly Optimiser[];
const decayNames = namesOf(learningRateDecays) satisfies readonly LearningRateDecay[];
const optionNames = [
  ...(['optimiser', 'learningRate', 'beta1', 'beta2', 'epsilon', 'momentum', 'nesterov'] as const),
  ...(['weightDecay', 'warmupSteps', 'decay', 'decaySteps', 'finalLearningRate'] as const),
  ...(['clipNorm', 'recompute', 'seed'] as const),
] as const satisfies readonly (keyof TrainerOptions)[];

const ofTrainer = ['causal', 'return', 'trace', 'out', 'training', 'dropoutSeed'] as const;
const stepNames = [
  ...forwardNames.filter((name) => !ofTrainer.some((each) => each === name)),
  'batch',
];
const inForward = 'call forward() of the model for results';
const elsewhere = {
  ...{ causal: "it is the model's", return: inForward, trace: inForward, out: inForward },
  ...{ training: 'a trainer always trains', dropoutSeed: "the trainer's seed decides it" },
};

/** What a trainer holds; it does not refer to the trainer, which could not be collected then. */
class TrainerMemory implements Holding {
  readonly tokens: IntegerInput;
  readonly targets: IntegerInput;
  readonly #runtime: Runtime;
  readonly #handle: number;
  readonly #parameters: SharedParameters;
  /** Bytes in the core besides the parameters, as they were counted last. */
  #counted = 0;

  constructor(runtime: Runtime, handle: number, parameters: SharedParameters) {
    this.#runtime = runtime;
    this.#handle = handle;
    this.#parameters = parameters.join();
    this.tokens = new IntegerInput(runtime.heap, 'tokens');
    this.targets = new IntegerInput(runtime.heap, 'targets');
    this.recount();
  }

  get bytes(): number {
    return this.#parameters.bytes + this.#counted + this.tokens.bytes + this.targets.bytes;
  }

  /** After calls for which the core may have allocated memory. */
  recount(): void {
    const { raw, heap } = this.#runtime;
    const bytes = raw.trainerBytes(this.#handle) - this.#parameters.bytes;
    if (bytes !== this.#counted) heap.count(bytes - this.#counted);
    this.#counted = bytes;
  }

  what(): string {
    return `a trainer of ${this.bytes} bytes`;
  }

  free(): void {
    const { raw, heap } = this.#runtime;
    raw.trainerRelease(this.#handle);
    heap.count(-this.#counted);
    this.#parameters.leave();
    this.tokens.release();
    this.targets.release();
  }
}

export class WasmTrainer extends CoreObject implements Trainer {
  readonly #memory: TrainerMemory;
  readonly #config: Transformer['config'];

  constructor(runtime: Runtime, model: Transformer, given: TrainerOptions = {}) {
    const record = optionsRecord(readOptions(given, optionNames, 'trainer'));
    const own = ownModel(model, runtime.heap);
    const { parameters } = own;
    const { args, raw } = runtime;
    const handle = call(runtime, (operands) => {
      wire.trainerOptions(args, record);
      return operands.make(() => raw.trainerCreate(own.handle));
    });
    const memory = new TrainerMemory(runtime, handle, parameters);
    super(runtime, handle, { argument: 'trainer', noun: 'a trainer' }, memory);
    this.#memory = memory;
    this.#config = own.config;
    Object.freeze(this);
  }

  get steps(): number {
    return this.runtime.raw.trainerSteps(this.handle);
  }

  get bytes(): number {
    this.assertLive();
    return this.#memory.bytes;
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
    this.#call((raw) => raw.trainerUpdate(this.handle));
    return wire.readTrainingStep(this.runtime.args.results());
  }

  setLearningRate(rate: number): void {
    this.assertLive();
    const checked = checkNumber(rate, 'learningRate');
    this.#call((raw) => raw.trainerSetLearningRate(this.handle, checked));
  }

  gradients(): Record<string, PlainTensor> {
    this.assertLive();
    this.#call((raw) => raw.trainerGradients(this.handle));
    return takeStateDict(this.runtime);
  }

  stateDict(): Record<string, PlainTensor> {
    this.assertLive();
    return this.#state();
  }

  loadStateDict(dict: StateDict): void {
    this.assertLive();
    this.#load(dict);
  }

  checkpoint(): Uint8Array<ArrayBuffer> {
    this.assertLive();
    return writeSafetensors(this.#state());
  }

  restore(checkpoint: Uint8Array | ArrayBuffer): void {
    this.assertLive();
    this.#load(readSafetensors(checkpoint).stateDict);
  }

  #state(): Record<string, PlainTensor> {
    this.#call((raw) => raw.trainerState(this.handle));
    return takeStateDict(this.runtime);
  }

  #load(dict: StateDict): void {
    const { runtime } = this;
    call(runtime, (operands) => {
      pushStateDict(runtime, dict, operands);
      operands.run(() => runtime.raw.trainerLoad(this.handle));
    });
  }

  /** A call of the core that reads no arguments from the block. */
  #call(run: (raw: Runtime['raw']) => number): void {
    const { runtime } = this;
    call(runtime, (operands) => operands.run(() => run(runtime.raw)));
  }

  #pass(tokens: unknown, targets: unknown, given: unknown, name: 'step' | 'accumulate'): void {
    const { runtime } = this;
    const alone = batchAlone(given);
    if (alone !== undefined) {
      // In a loop of small steps, nothing but their results is left to the garbage collector.
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

  /** Throws `E_OPTION`, `E_MEMORY`, and `E_DISPOSED` if code of the caller's has disposed the trainer. */
  #copyIn(tokens: unknown, targets: unknown): void {
    this.assertLive();
    this.#memory.tokens.set(tokens);
    this.#memory.targets.set(targets);
  }

  #write(batch: number, options: wire.MultiHeadAttentionOptions): void {
    const { tokens, targets } = this.#memory;
    wire.training(this.runtime.args, tokens, batch, targets, options);
  }

  /** Gives a CallStatus. */
  #run(name: 'step' | 'accumulate'): number {
    const { raw } = this.runtime;
    const { handle } = this;
    const status = name === 'step' ? raw.trainerStep(handle) : raw.trainerAccumulate(handle);
    this.#memory.recount();
    return status;
  }
}

/** The batch of options that state nothing else, 1 if they do not state it; undefined if they must be read as any others. */
function batchAlone(given: unknown): unknown {
  if (given === undefined) return 1;
  try {
    if (Object.getPrototypeOf(given) !== Object.prototype) return undefined;
    for (const name in given as object) if (name !== 'batch') return undefined;
    return (given as TrainerStepOptions).batch ?? 1;
  } catch {
    return undefined;
  }
}

/** Throws `E_OPTION`. */
function ownModel(given: unknown, heap: Heap): WasmTransformer {
  const isModel = isCoreObject(given) && given instanceof WasmTransformer;
  if (isModel && given.livesIn(heap)) return given;
  throw new MultiheadError('E_OPTION', {
    argument: 'model',
    expected: 'one made by transformer() of the same load()',
    got: isModel ? 'one of another' : describe(given),
  });
}

/** Fills in the defaults. The names have been checked. Throws `E_OPTION`. */
function optionsRecord(options: TrainerOptions): wire.TrainerOptions {
  const { optimiser = 'adamW', decay = 'constant', nesterov = false, recompute = false } = options;
  const number = (name: NumberName, otherwise: number): number =>
    options[name] === undefined ? otherwise : checkNumber(options[name], name);
  const count = (name: 'warmupSteps' | 'decaySteps'): number =>
    options[name] === undefined ? 0 : checkCount(options[name], name, 0);
  return {
    optimiser: optimisers[checkChoice(optimiser, optimiserNames, 'optimiser')],
    learningRate: number('learningRate', 1e-3),
    beta1: number('beta1', 0.9),
    beta2: number('beta2', 0.999),
    epsilon: number('epsilon', 1e-8),
    momentum: number('momentum', 0),
    nesterov: checkFlag(nesterov, 'nesterov'),
    weightDecay: number('weightDecay', 0),
    warmupSteps: count('warmupSteps'),
    decay: learningRateDecays[checkChoice(decay, decayNames, 'decay')],
    decaySteps: count('decaySteps'),
    finalLearningRate: number('finalLearningRate', 0),
    clipNorm: number('clipNorm', 0),
    recompute: checkFlag(recompute, 'recompute'),
    seed: seedWords(options.seed ?? 0, 'seed'),
  };
}

type NumberName = {
  [N in keyof TrainerOptions]-?: Exclude<TrainerOptions[N], undefined> extends number ? N : never;
}[keyof TrainerOptions];
