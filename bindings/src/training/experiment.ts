// createExperiment() of multihead/lab: a handle to an experiment in the core.

import { seedWords } from '../attention/options.js';
import { experimentKinds, positionKinds } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { WasmTransformer } from '../modules/transformer.js';
import type { Results } from '../runtime/arguments.js';
import { shapeError } from '../runtime/errors.js';
import { bytesPerElement, onJavaScriptHeap, SharedParameters } from '../runtime/memory.js';
import { call, checkStatus, noSpan, type Operands, type Runtime } from '../runtime/operands.js';
import { checkCount, type Names, namesOf, plain, readOptions } from '../runtime/options.js';
import { choice, count, flag, number, readSettings, type Setting } from '../runtime/settings.js';
import type { Evaluation, EvaluationOptions, Experiment, ExperimentKind, ExperimentOptions, HeldOutSequences } from '../types/index.js';
import type { PositionKind, TrainingStep, Transformer, TransformerConfig } from '../types/index.js';
import type { Count, Int32, Span } from '../types/wire.js';
import { CoreTrainer, type KeptOption, TrainerMemory } from './core_trainer.js';

const ownName = { argument: 'experiment', noun: 'an experiment' };

const kindNames = namesOf(experimentKinds) satisfies readonly ExperimentKind[];
const positionNames = namesOf(positionKinds) satisfies readonly PositionKind[];
/** The core fills in the sizes that are undefined. */
const schema = {
  kind: choice(kindNames, 'fourJobs'),
  numHeads: count(undefined),
  numLayers: count(undefined),
  seed: {
    otherwise: 1,
    read(value, name) {
      seedWords(value, name);
      return value as number | bigint;
    },
  } as Setting<number | bigint>,
  positions: choice(positionNames, 'rope'),
  steps: count(undefined),
  batch: count(undefined),
  learningRate: number(1e-2),
  recompute: flag(false),
} satisfies Names<ExperimentOptions>;
const evaluation = { sequences: count(128 as Count), attention: flag(true), ablation: flag(false) };
const evaluationNames = { ...evaluation, headScales: plain } satisfies Names<EvaluationOptions>;

/** Tokens per sequence. */
const length = 32;

export class WasmExperiment extends CoreTrainer implements Experiment {
  readonly options: Experiment['options'];
  readonly jobs: readonly string[];
  readonly patterns: readonly string[];
  readonly attentionOptions: Experiment['attentionOptions'];
  readonly #memory: TrainerMemory;
  readonly #info: wire.ExperimentFacts;
  /** Created at the first read. */
  #model: WasmTransformer | undefined;

  constructor(runtime: Runtime, given: ExperimentOptions = {}) {
    const options = readSettings(readOptions(given, schema, 'experiment'), schema);
    const handle = create(runtime, options);
    runtime.raw.experimentFacts(handle);
    const info = wire.readExperimentFacts(runtime.args.results());
    const memory = memoryOf(runtime, handle, info);
    super(runtime, handle, trainerOf(info), ownName, memory, keptOptions(options, info));
    this.#memory = memory;
    this.#info = info;
    const { numHeads, numLayers, steps, batch } = info;
    this.options = Object.freeze({ ...options, numHeads, numLayers, steps, batch });
    this.jobs = Object.freeze(info.jobs);
    this.patterns = Object.freeze(info.patterns);
    this.attentionOptions = Object.freeze(options.positions === 'alibi' ? { alibi: true } : {});
    Object.freeze(this);
  }

  get model(): Transformer {
    this.assertLive();
    if (this.#model === undefined || this.#model.disposed) {
      const handle = checkCount(this.#info.model, 'model');
      const { parameters } = this.#memory;
      const config = configOf(this.options, this.#info);
      const model = new WasmTransformer(this.runtime, config, { handle, parameters });
      this.#model = model.belongTo(this);
    }
    return this.#model;
  }

  get finished(): boolean {
    return this.steps() >= this.options.steps;
  }

  step(): TrainingStep {
    const { runtime } = this;
    const status = runtime.raw._multihead_experiment_step(this.handle);
    this.#memory.recount();
    checkStatus(runtime, status);
    return wire.readTrainingStep(runtime.args.results());
  }

  evaluate(given: EvaluationOptions = {}): Evaluation {
    this.assertLive();
    const { runtime } = this;
    const options = readOptions(given, evaluationNames, 'evaluate');
    const settings = readSettings(options, evaluation);
    return call(runtime, (operands) => {
      wire.evaluation(runtime.args, { ...settings, headScales: this.#scales(options.headScales, operands) });
      return this.#readResult(() => operands.run((raw) => raw.experimentEvaluate(this.handle)), wire.readEvaluation);
    });
  }

  heldOut(first: number, count: number): HeldOutSequences {
    this.assertLive();
    const [from, wanted] = [checkCount(first, 'first', 0), checkCount(count, 'count', 0)];
    return this.#readResult(
      () => this.simply((raw) => raw.experimentHeldOut(this.handle, from, wanted)),
      (results) => {
        const bytes = sequenceBytes(wanted, this.jobs.length);
        return onJavaScriptHeap(bytes, 'count', () => wire.readHeldOutSequences(results));
      },
    );
  }

  override dispose(): void {
    if (!this.disposed) this.#model?.dispose();
    super.dispose();
  }

  /** Throws `E_OPTION`, `E_SHAPE`, `E_MEMORY`. */
  #scales(given: unknown, operands: Operands): Span<'f32'> {
    if (given === undefined) return noSpan;
    const heads = this.options.numHeads * this.options.numLayers;
    const span = operands.span(given, 'f32', 'headScales');
    if (span.length === heads) return span;
    throw shapeError('headScales', `${heads} values`, `${span.length} values`);
  }

  /** Runs a call and copies its result out of memory of the core before that memory is freed. */
  #readResult<R>(run: () => void, read: (results: Results) => R): R {
    const { raw, args } = this.runtime;
    try {
      run();
      return read(args.results());
    } finally {
      raw.releaseListed();
    }
  }
}

type CheckedOptions = ReturnType<typeof readSettings<typeof schema>>;

/** Creates the experiment in the core; returns its handle. Throws `E_OPTION`, `E_MEMORY`. */
function create(runtime: Runtime, options: CheckedOptions): Int32 {
  const { numHeads = 0, numLayers = 0, steps = 0, batch = 0 } = options;
  return call(runtime, (operands) => {
    wire.experiment(runtime.args, {
      ...options,
      ...{ numHeads, numLayers, steps, batch },
      kind: experimentKinds[options.kind],
      seed: seedWords(options.seed, 'seed'),
      positions: positionKinds[options.positions],
    });
    return operands.make((raw) => raw.experimentCreate());
  });
}

/** Options that the state of an experiment stores, in the format of `multihead-train`. */
const keptOptions = ({ positions }: CheckedOptions, { numHeads }: wire.ExperimentFacts): readonly KeptOption[] => [
  { tensor: 'run.heads', option: 'numHeads', value: numHeads, shown: String },
  {
    tensor: 'run.positions',
    option: 'positions',
    value: positionKinds[positions],
    shown: (value) => JSON.stringify(positionNames[value]) ?? String(value),
  },
];

const sequenceBytes = (count: number, jobs: number): number => count * length * (1 + jobs) * bytesPerElement('i32');

const trainerOf = ({ trainer }: wire.ExperimentFacts): Int32 => checkCount(trainer, 'trainer');

/** A function outside the constructor, so that the cleanup function cannot reference the experiment. */
function memoryOf(runtime: Runtime, handle: Int32, info: wire.ExperimentFacts): TrainerMemory {
  const { raw, heap } = runtime;
  const parameters = new SharedParameters(heap, info.parameters * bytesPerElement('f32'));
  const batchBytes = sequenceBytes(info.batch, info.jobs.length);
  const release = (): void => raw.experimentRelease(handle);
  return new TrainerMemory(runtime, trainerOf(info), parameters, ownName, release, batchBytes);
}

function configOf({ positions }: Experiment['options'], info: wire.ExperimentFacts): TransformerConfig {
  const { numLayers, vocabSize, embedDim, numHeads, maxPositions, jobs } = info;
  return {
    ...{ numLayers, vocabSize, embedDim, numHeads, numReadouts: jobs.length },
    ...{ bias: false, norm: 'rmsNorm', normAffine: false },
    ...(maxPositions > 0 && { maxPositions }),
    ...(positions === 'rope' && { rope: { style: 'half' } }),
  };
}
