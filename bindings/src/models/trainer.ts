// Model.trainer(): a trainer of a model in the core of this thread.

import { trainerTables } from '../generated/trainer_tables.js';
import * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { onJavaScriptHeap, SharedParameters } from '../runtime/memory.js';
import { noSpan, type Runtime } from '../runtime/operands.js';
import { type Names, plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import { type StepCalls, StepTrainer, trainerNames, trainerRecord } from '../training/step_trainer.js';
import type { BatchOptions, Model, ModelBatch, ModelInput, ModelTrainer, ModelTrainerOptions } from '../types/models.js';
import type { Int32 } from '../types/wire.js';
import type { Batch } from './core/engine.js';
import { CoreModel } from './core/model.js';
import { entriesOf } from './inputs.js';
import { checkPlaces } from './sites.js';

const modelTrainerNames = { layers: plain, ...trainerNames } satisfies Names<ModelTrainerOptions>;
const stepNames = { batch: plain } satisfies Names<BatchOptions>;

/**
 * Makes a trainer in the core, of a copy of the chosen layers, or of the whole model; `parameters` is the memory of the copies, which the
 * trained model has, too. Throws `E_OPTION`, `E_MEMORY`, `E_LOAD`.
 */
export async function makeTrainer(model: CoreModel, given: ModelTrainerOptions = {}) {
  const { layers, ...options } = readOptions(given, modelTrainerNames, 'trainer');
  const chosen = layers === undefined ? undefined : Int32Array.from(checkPlaces(layers, 'layers', model.info.numLayers));
  const record = trainerRecord(options);
  await model.load('analyses');
  const { moreTables } = model.core;
  if (!moreTables.includes(trainerTables)) moreTables.push(trainerTables);
  return model.within((operands, runtime, handle) => {
    const { args, heap } = runtime;
    wire.modelTrainer(args, record, chosen === undefined ? noSpan : operands.span(chosen, 'i32', 'layers'));
    const made = operands.make((raw) => raw.modelTrainerCreate(handle));
    const trained = wire.readTrainedModel(args.results());
    const parameters = new SharedParameters(heap, 4 * trained.parameters);
    const shared = chosen === undefined ? [] : model.weights;
    return { runtime, handle: made, parameters, trained: new CoreModel(runtime, trained.model as Int32, [parameters, ...shared]) };
  });
}

const callsOf = ({ args, raw }: Runtime, handle: Int32): StepCalls<BatchOptions> => ({
  readStep: (given, name) => readOptions(given, stepNames, name),
  write: ({ tokens, targets }, batch) => wire.modelTraining(args, tokens, batch, targets),
  run: (updates) => raw.modelTrain(handle, updates === 1),
});

export class WasmModelTrainer extends StepTrainer<BatchOptions> implements ModelTrainer {
  readonly model: Model;
  readonly #sequence: (input: unknown, argument: string) => Promise<Batch>;

  /** @param sequence copies an input, and converts a text */
  constructor(
    { runtime, handle, parameters }: Awaited<ReturnType<typeof makeTrainer>>,
    model: Model,
    sequence: (input: unknown, argument: string) => Promise<Batch>,
  ) {
    super(runtime, handle, parameters, callsOf(runtime, handle));
    this.model = model;
    this.#sequence = sequence;
    Object.freeze(this);
  }

  async batchOf(texts: string | readonly ModelInput[]): Promise<ModelBatch> {
    this.assertLive();
    const given = typeof texts === 'string' ? [texts] : texts;
    if (!Array.isArray(given) || given.length === 0)
      throw optionError('texts', 'a text, or an array of texts and arrays of token ids, not empty', describe(texts));
    const batches = await Promise.all(entriesOf(given, 'texts').map((text, at) => this.#sequence(text, `texts[${at}]`)));
    const length = batches.reduce((most, { ids }) => Math.max(most, ids.length), 0);
    const [tokens, targets] = onJavaScriptHeap(8 * batches.length * length, 'texts', () =>
      [0, -1].map((filled) => new Int32Array(batches.length * length).fill(filled)),
    ) as [Int32Array<ArrayBuffer>, Int32Array<ArrayBuffer>];
    batches.forEach(({ ids }, row) => {
      tokens.set(ids, row * length);
      targets.set(ids.subarray(1), row * length);
    });
    return { tokens, targets, batch: batches.length };
  }
}
