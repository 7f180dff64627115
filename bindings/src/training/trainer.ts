// mh.trainer: a handle to a trainer of a transformer in the core.

import * as wire from '../generated/wire.js';
import { forwardNames, moduleOptions, noModuleOptions } from '../modules/options.js';
import { WasmTransformer } from '../modules/transformer.js';
import { isCoreObject } from '../runtime/core_object.js';
import { optionError } from '../runtime/errors.js';
import type { Heap } from '../runtime/memory.js';
import { call, type Operands, type Runtime } from '../runtime/operands.js';
import { type Names, plain, readOptions, without } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { Trainer, TrainerOptions, TrainerStepOptions, Transformer } from '../types/index.js';
import type { Count, Int32 } from '../types/wire.js';
import { type StepInputs, StepTrainer, trainerNames, trainerRecord } from './step_trainer.js';

const inForward = 'call forward() of the model for results';
const elsewhere = {
  ...{ causal: "it is the model's", return: inForward, trace: inForward, out: inForward },
  ...{ training: 'a trainer always trains', dropoutSeed: "the trainer's seed decides it" },
};
const stepNames = { ...without(forwardNames, elsewhere), batch: plain } satisfies Names<TrainerStepOptions>;

export class WasmTrainer extends StepTrainer<TrainerStepOptions> implements Trainer {
  readonly #config: WasmTransformer['config'];

  constructor(runtime: Runtime, model: Transformer, given: TrainerOptions = {}) {
    const record = trainerRecord(readOptions(given, trainerNames, 'trainer'));
    const own = ownModel(model, runtime.heap);
    const { parameters } = own;
    const { args, raw } = runtime;
    const handle = call(runtime, (operands) => {
      wire.trainerOptions(args, record);
      return operands.make(() => raw.trainerCreate(own.handle));
    });
    super(runtime, handle, parameters);
    this.#config = own.config;
    Object.freeze(this);
  }

  protected override readStep(given: TrainerStepOptions, name: string): TrainerStepOptions {
    return readOptions(given, stepNames, name, elsewhere);
  }

  protected override write({ tokens, targets }: StepInputs, batch: Count, options?: TrainerStepOptions, operands?: Operands): void {
    wire.training(this.runtime.args, tokens, batch, targets, options && operands ? this.#read(options, operands, tokens.length, batch) : noModuleOptions);
  }

  #read(options: TrainerStepOptions, operands: Operands, tokens: number, batch: Count): wire.ModuleOptions {
    const { numHeads: heads, headDim: width } = this.#config;
    const queries = tokens / batch;
    return moduleOptions(options, operands, { batch, heads, queries, keys: queries, width });
  }

  protected override run(updates: 0 | 1): Int32 {
    return this.runtime.raw._multihead_train(this.handle, updates);
  }
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
