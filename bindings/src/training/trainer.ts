// mh.trainer: a handle to a trainer of a transformer in the core.

import * as wire from '../generated/wire.js';
import { forwardNames, moduleOptions, noModuleOptions } from '../modules/options.js';
import { WasmTransformer } from '../modules/transformer.js';
import { isCoreObject } from '../runtime/core_object.js';
import { optionError } from '../runtime/errors.js';
import type { Heap, SharedParameters } from '../runtime/memory.js';
import { call, type Runtime } from '../runtime/operands.js';
import { type Names, plain, readOptions, without } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { Trainer, TrainerOptions, TrainerStepOptions, Transformer } from '../types/index.js';
import type { Int32 } from '../types/wire.js';
import { type StepCalls, StepTrainer, trainerNames, trainerRecord } from './step_trainer.js';

const inForward = 'call forward() of the model for results';
const elsewhere = {
  ...{ causal: "it is the model's", return: inForward, trace: inForward, out: inForward },
  ...{ training: 'a trainer always trains', dropoutSeed: "the trainer's seed decides it" },
};
const stepNames = { ...without(forwardNames, elsewhere), batch: plain } satisfies Names<TrainerStepOptions>;

const callsOf = ({ args, raw }: Runtime, handle: Int32, model: WasmTransformer, parameters: SharedParameters): StepCalls<TrainerStepOptions> => ({
  readStep: (given, name) => readOptions(given, stepNames, name, elsewhere),
  write({ tokens, targets }, batch, options, operands) {
    if (!model.disposed && model.parameters !== parameters)
      throw optionError(
        'trainer',
        "one of the model's present parameters",
        'one of those before loadStateDict() or initialize(): make a new trainer',
      );
    const queries = tokens.length / batch;
    const written = options && operands ? moduleOptions(options, operands, model.config, { batch, queries, keys: queries }) : noModuleOptions;
    wire.training(args, tokens, batch, targets, written);
  },
  run: (updates) => raw._multihead_train(handle, updates),
});

export class WasmTrainer extends StepTrainer<TrainerStepOptions> implements Trainer {
  constructor(runtime: Runtime, model: Transformer, given: TrainerOptions = {}) {
    const record = trainerRecord(readOptions(given, trainerNames, 'trainer'));
    const own = ownModel(model, runtime.heap);
    const { parameters } = own;
    const handle = call(runtime, (operands) => {
      wire.trainerOptions(runtime.args, record);
      return operands.make((raw) => raw.trainerCreate(own.handle));
    });
    super(runtime, handle, parameters, callsOf(runtime, handle, own, parameters));
    Object.freeze(this);
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
  throw optionError('model', 'one made by transformer() of the same load()', isModel ? 'one of another' : describe(given));
}
