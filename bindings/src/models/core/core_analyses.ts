// Analyses of a model in the core of this thread.

import { type Ablation, type By, metricKinds, type Site } from '../../generated/tables.js';
import * as wire from '../../generated/wire.js';
import { call, type Operands, type Runtime } from '../../runtime/operands.js';
import type { Count, Extents, Int32, Int64, Operand, Span } from '../../types/wire.js';
import type { Awaitable, Batch, PassCall, PassResult, Place } from './engine.js';
import type { ModelInfo } from '../../types/models.js';
import { captureSpan, editSpan, inputsOf, ints, numberSpan } from './lists.js';
import { type CoreModel, copied, output } from './model.js';

/** A metric; of a function of the caller, with the function or its gradient. */
export type CoreMetric = Omit<wire.GivenMetric, 'slopes'> & {
  readonly evaluate?: ((logits: Float32Array<ArrayBuffer>) => number) | undefined;
  readonly slopes?: Float32Array | undefined;
};

/** A batch of one sequence. */
export interface Input {
  readonly batch: Batch;
  readonly headScales: Float32Array | undefined;
}

export type Pair = readonly [clean: Input, corrupt: Input];

/** Token ids of the texts of ablate(), of a model with an encoder the decoder's; `sources`: the encoder's. */
export interface Texts {
  readonly texts: readonly Int32Array[];
  readonly sources?: readonly Int32Array[] | undefined;
}

const metricOf = (operands: Operands, { slopes, ...metric }: CoreMetric): wire.GivenMetric => ({
  ...metric,
  slopes: operands.optionalSpan(slopes, 'f32', 'metric', 0),
});

/** The methods of CoreAnalyses, also of a GPU and of workers, which answer later. */
export type PassAnalyses = {
  [Name in keyof CoreAnalyses]: CoreAnalyses[Name] extends (...args: infer Args) => infer Result
    ? (...args: Args) => Result extends Sweep ? AnalysisSweep : Awaitable<Result>
    : never;
};

/** Runs of a model with other parts, a few at a time, here or elsewhere. Dispose it. */
export interface AnalysisSweep {
  /** The next runs. Returns the share of all that is done. */
  next(): Awaitable<number>;
  results(): wire.PartResults;
  dispose(): void;
}

/** Analyses that need no gradients. */
export class CoreAnalyses {
  readonly #model: CoreModel;

  constructor(model: CoreModel) {
    this.#model = model;
  }

  lens({ batch, headScales }: Input, layers: readonly number[], top: Int64, tokens: readonly number[], logits: Extents | undefined) {
    return this.#model.within((operands, runtime, handle) => {
      const inputs = inputsOf(runtime, operands, this.#model.info, batch, headScales);
      const edits = editSpan(runtime, operands, batch.edits);
      const made = logits && output(operands, logits);
      const read = operands.span(Int32Array.from(layers), 'i32', 'layers');
      const ranked = operands.span(Int32Array.from(tokens), 'i32', 'tokens');
      wire.modelLens(runtime.args, inputs, edits, read, top, ranked, made);
      operands.run((raw) => raw.modelLens(handle));
      return { ...wire.readLensRows(runtime.args.results()), logits: made && copied(runtime, made) };
    });
  }

  logProbabilities({ batch, headScales }: Input): Pick<wire.LensRows, 'probabilities' | 'ranks'> {
    return this.#model.within((operands, runtime, handle) => {
      const inputs = inputsOf(runtime, operands, this.#model.info, batch, headScales);
      wire.modelLogProbabilities(runtime.args, inputs, editSpan(runtime, operands, batch.edits));
      operands.run((raw) => raw.modelLogProbabilities(handle));
      return wire.readLensRows(runtime.args.results());
    });
  }

  measure({ batch, headScales }: Input, metric: CoreMetric): number {
    if (metric.evaluate !== undefined) return metric.evaluate(lastLogits(this.#model, { batch, headScales }));
    return this.#model.within((operands, runtime, handle) => {
      const inputs = inputsOf(runtime, operands, this.#model.info, batch, headScales);
      wire.modelMeasure(runtime.args, inputs, editSpan(runtime, operands, batch.edits), metricOf(operands, metric));
      operands.run((raw) => raw.modelMeasure(handle));
      return wire.readPartResults(runtime.args.results()).clean;
    });
  }

  patch(inputs: Pair, metric: CoreMetric, site: Site, by: By): Sweep {
    return Sweep.patch(this.#model, inputs, metric, site, by);
  }

  ablate(texts: Texts, headScales: Float32Array | undefined, metric: CoreMetric, ablation: Ablation, site: Site): Sweep {
    return Sweep.ablate(this.#model, texts, headScales, metric, ablation, site);
  }
}

/** The pass that gives the logits after the last token. */
export const lastLogitsOf = ({ vocabSize }: ModelInfo, { batch, headScales }: Input): PassCall => ({
  ...{ batch, headScales, what: { kind: 'forward' } },
  outputs: [undefined, undefined, [1, 1, vocabSize] as readonly number[] as Extents, undefined],
});

export const lastLogits = (model: CoreModel, input: Input) => model.run(lastLogitsOf(model.info, input))[2] as Float32Array<ArrayBuffer>;

export function gradients(
  model: CoreModel,
  { batch, headScales }: Input,
  metric: CoreMetric,
  places: readonly Place[],
  shapes: readonly Extents[],
): PassResult {
  return model.within((operands, runtime, handle) => {
    const inputs = inputsOf(runtime, operands, model.info, batch, headScales);
    const made = shapes.map((shape) => output(operands, shape));
    wire.modelGradients(runtime.args, inputs, metricOf(operands, metric), captureSpan(runtime, operands, places, made));
    operands.run((raw) => raw.modelGradients(handle));
    return made.map((each) => copied(runtime, each));
  });
}

export function attributionPatch(model: CoreModel, inputs: Pair, metric: CoreMetric, site: Site, by: By, positions: boolean) {
  return model.within((operands, runtime, handle) => {
    const [clean, corrupt] = pairOf(runtime, operands, model, inputs);
    wire.modelAttributionPatch(runtime.args, clean, corrupt, metricOf(operands, metric), site, by, positions);
    operands.run((raw) => raw.modelAttributionPatch(handle));
    return wire.readPartResults(runtime.args.results());
  });
}

export function logitAttribution(model: CoreModel, { batch, headScales }: Input, metric: CoreMetric): wire.LogitAttribution {
  return model.within((operands, runtime, handle) => {
    wire.modelLogitAttribution(runtime.args, inputsOf(runtime, operands, model.info, batch, headScales), metricOf(operands, metric));
    operands.run((raw) => raw.modelLogitAttribution(handle));
    return wire.readLogitAttribution(runtime.args.results());
  });
}

const pairOf = (runtime: Runtime, operands: Operands, { info }: CoreModel, inputs: Pair) =>
  inputs.map(({ batch, headScales }) => inputsOf(runtime, operands, info, batch, headScales)) as [wire.ModelInputs, wire.ModelInputs];

/** Rows of a pass that keeps the thread. */
const mostRows = 128;

/** Rows of logits that a function of the caller gets in one turn. */
const mostLogits = 16;

export class Sweep implements AnalysisSweep {
  readonly #runtime: Runtime;
  readonly #handle: Int32;
  readonly #vocabulary: number;
  readonly #most: number;
  readonly #metric: CoreMetric;

  private constructor({ info }: CoreModel, runtime: Runtime, handle: Int32, tokens: number, metric: CoreMetric) {
    this.#metric = metric;
    this.#runtime = runtime;
    this.#handle = handle;
    this.#vocabulary = info.vocabSize;
    this.#most = Math.max(1, Math.floor(mostRows / tokens));
  }

  static patch(model: CoreModel, inputs: Pair, metric: CoreMetric, site: Site, by: By): Sweep {
    return model.within((operands, runtime, handle) => {
      const [clean, corrupt] = pairOf(runtime, operands, model, inputs);
      wire.patchSweep(runtime.args, clean, corrupt, metricOf(operands, metric), site, by);
      const made = operands.make((raw) => raw.patchSweepCreate(handle));
      return new Sweep(model, runtime, made, inputs[0].batch.tokens, metric);
    });
  }

  static ablate(
    model: CoreModel,
    { texts, sources = [] }: Texts,
    headScales: Float32Array | undefined,
    metric: CoreMetric,
    ablation: Ablation,
    site: Site,
  ): Sweep {
    const joined = (lists: readonly Int32Array[]): Int32Array => Int32Array.from(lists.flatMap((list) => [...list]));
    const lengthsOf = (lists: readonly Int32Array[]): Int32Array => Int32Array.from(lists, ({ length }) => length);
    return model.within((operands, runtime, handle) => {
      const ids = joined(texts);
      const batch = { ids, batch: 1, tokens: ids.length as Count, source: joined(sources) } as const;
      const inputs = inputsOf(runtime, operands, model.info, batch, headScales);
      const lengths = [lengthsOf(texts), lengthsOf(sources)].map((list) => ints(operands, list, 'texts')) as [Span<'i32'>, Span<'i32'>];
      wire.ablationSweep(runtime.args, inputs, ...lengths, metricOf(operands, metric), ablation, site);
      const made = operands.make((raw) => raw.ablationSweepCreate(handle));
      return new Sweep(model, runtime, made, Math.max(...texts.map(({ length }) => length)), metric);
    });
  }

  next(): number {
    const found = this.run();
    return typeof found === 'number' ? found : this.record(found.map((row) => this.#metric.evaluate!(row)));
  }

  /** The next runs. Returns the share of all that is done, or rows of logits, whose metrics record() then takes. */
  run(): number | Float32Array<ArrayBuffer>[] {
    if (this.#metric.kind !== metricKinds.function) return this.#run(this.#most, undefined).done;
    const most = Math.min(this.#most, mostLogits);
    return call(this.#runtime, (operands) => {
      const made = output(operands, [most, this.#vocabulary] as readonly number[] as Extents);
      const { runs } = this.#run(most, made, operands);
      const all = copied(this.#runtime, made);
      return Array.from({ length: runs }, (_, row) => all.slice(row * this.#vocabulary, (row + 1) * this.#vocabulary));
    });
  }

  record(metrics: readonly number[]): number {
    return call(this.#runtime, (operands) => {
      const { args } = this.#runtime;
      wire.sweepRecord(args, numberSpan(operands, this.#runtime, metrics, 'metric'));
      operands.run((raw) => raw.sweepRecord(this.#handle));
      return wire.readSweepProgress(args.results()).done;
    });
  }

  results(): wire.PartResults {
    this.#runtime.raw.sweepResults(this.#handle);
    return wire.readPartResults(this.#runtime.args.results());
  }

  dispose(): void {
    const { raw } = this.#runtime;
    if (!raw.dead) raw.sweepRelease(this.#handle);
  }

  #run(most: number, logits: Operand<'f32'> | undefined, given?: Operands): wire.SweepProgress {
    const { args } = this.#runtime;
    const run = (operands: Operands): wire.SweepProgress => {
      wire.sweepRun(args, most as Count, logits);
      operands.run((raw) => raw.sweepRun(this.#handle));
      return wire.readSweepProgress(args.results());
    };
    return given === undefined ? call(this.#runtime, run) : run(given);
  }
}
