// Analyses of language models: options, texts and metrics. The core of this thread computes.

import { ablations, metricKinds, parts } from '../generated/tables.js';
import { abortedError, checkSignal } from '../runtime/abort.js';
import { optionError } from '../runtime/errors.js';
import { checkCallback, checkChoice, checkFlag, checkOptions, checkWhole, type Names, namesOf, plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import { quoted } from '../runtime/text.js';
import type { AblateOptions, AnalysisOptions, AttributionPatchOptions, EditedOptions, EncodeOptions, GradientPlace } from '../types/models.js';
import type { LensOptions, LensResult, LogitAttribution, LogitDifference, LogProbs, Metric, MetricFunction, ModelAnalyses } from '../types/models.js';
import type { ModelArray, ModelInput, PairResults, PartOptions, PartResults, PatchOptions, SweepOptions, Token } from '../types/models.js';
import type { Count, Extents, Int32, Int64 } from '../types/wire.js';
import * as core from './core/core_analyses.js';
import type { Awaitable, Batch, ModelEngine } from './core/engine.js';
import { type CoreModel, onThisThread } from './core/model.js';
import { shapeOf } from './core/sites.js';
import { Turn } from './core/turns.js';
import { decoderInputOf } from './decoder_input.js';
import { checkScales, entriesOf } from './inputs.js';
import type { ModelParts } from './parts.js';
import { checkParts, checkPlaces, named, readEdits, readPlaces, siteOf } from './sites.js';
import { encodeText } from './tokenizer.js';

const analysisNames = { headScales: plain, addSpecialTokens: plain } satisfies Names<AnalysisOptions>;
const editedNames = { ...analysisNames, edits: plain } satisfies Names<EditedOptions>;
const lensNames = { layers: plain, top: plain, tokens: plain, logits: plain, ...editedNames } satisfies Names<LensOptions>;
const sweepNames = { onProgress: plain, signal: plain, ...analysisNames } satisfies Names<SweepOptions>;
const partNames = { site: plain, by: plain, ...analysisNames } satisfies Names<PartOptions>;
const patchNames = { ...partNames, ...sweepNames } satisfies Names<PatchOptions>;
const attributionNames = { ...partNames, positions: plain } satisfies Names<AttributionPatchOptions>;
const ablateNames = { ablation: plain, site: plain, decoderInputs: plain, ...sweepNames } satisfies Names<AblateOptions>;
const metricNames = { token: plain, against: plain, position: plain };

/** The largest `top`. */
const mostTop = 100;

/** A checked metric, whose texts are no token ids yet. */
interface ReadMetric {
  readonly kind: keyof typeof metricKinds;
  readonly position: Int64;
  readonly token?: Token;
  readonly against?: Token;
  readonly evaluate?: (logits: Float32Array<ArrayBuffer>, gradient?: Float32Array<ArrayBuffer>) => number;
}

function checkToken(value: unknown, argument: string, vocabSize: number): Token {
  const isId = Number.isInteger(value) && (value as number) >= 0 && (value as number) < vocabSize;
  if (isId || typeof value === 'string') return value as Token;
  throw optionError(argument, `a token id, 0 to ${vocabSize - 1}, or a text that is one token`, describe(value));
}

/** A function of the caller, whose results are checked. */
function checked(metric: MetricFunction): NonNullable<ReadMetric['evaluate']> {
  return (logits, gradient) => {
    const value: unknown = metric(logits, gradient);
    if (!Number.isFinite(value)) throw optionError('metric', 'a function that returns a finite number', describe(value));
    const wrong = gradient?.find((slope) => !Number.isFinite(slope));
    if (wrong !== undefined) throw optionError('metric', 'a function that fills gradient with finite numbers', String(wrong));
    return value as number;
  };
}

/** Copies a metric. Throws `E_OPTION`. */
function readMetric(metric: unknown, vocabSize: number): ReadMetric {
  if (typeof metric === 'function') return { kind: 'function', position: -1, evaluate: checked(metric as MetricFunction) };
  if (typeof metric !== 'object' || metric === null) {
    throw optionError('metric', 'an object with token, an object with meanLogProb: true, or a function', describe(metric));
  }
  if ('meanLogProb' in metric) {
    checkOptions(metric, { meanLogProb: plain }, 'metric');
    if (metric.meanLogProb !== true) throw optionError('metric.meanLogProb', 'true', describe(metric.meanLogProb));
    return { kind: 'meanLogProbability', position: -1 };
  }
  checkOptions(metric, metricNames, 'metric');
  const { token, against, position = -1 } = metric as Partial<LogitDifference>;
  const read = { token: checkToken(token, 'metric.token', vocabSize), position: checkWhole(position, 'metric.position') };
  if (against === undefined) return { ...read, kind: 'logProbability' };
  return { ...read, kind: 'logitDifference', against: checkToken(against, 'metric.against', vocabSize) };
}

type Sequence = (input: unknown, argument: string, options?: EncodeOptions) => Promise<Batch>;

export class Analyses implements ModelAnalyses {
  readonly #engine: ModelEngine;
  readonly #parts: ModelParts;
  readonly #sequence: Sequence;

  /** @param sequence copies an input, and converts a text */
  constructor(engine: ModelEngine, parts: ModelParts, sequence: Sequence) {
    this.#engine = engine;
    this.#parts = parts;
    this.#sequence = sequence;
  }

  async lens(input: ModelInput, given: LensOptions = {}): Promise<LensResult> {
    const { layers, top = 5, tokens = [], logits = false, ...options } = readOptions(given, lensNames, 'lens');
    const { numLayers, vocabSize } = this.#engine.info;
    const chosen = layers === undefined ? Array.from({ length: numLayers + 1 }, (_, at) => at) : checkPlaces(layers, 'layers', numLayers + 1);
    if (!(Number.isInteger(top) && top >= 0 && top <= Math.min(mostTop, vocabSize)))
      throw optionError('top', `0 to ${Math.min(mostTop, vocabSize)}`, describe(top));
    if (!Array.isArray(tokens)) throw optionError('tokens', 'an array of tokens', describe(tokens));
    const wanted = entriesOf(tokens, 'tokens').map((token, at) => checkToken(token, `tokens[${at}]`, vocabSize));
    checkFlag(logits, 'logits');
    const { batch, headScales } = await this.#edited(input, options);
    const ids = await Promise.all(wanted.map((token, at) => this.#idOf(token, `tokens[${at}]`)));
    const shape = [chosen.length, batch.tokens, vocabSize];
    const all = logits ? ([chosen.length, 1, batch.tokens, vocabSize] as readonly number[] as Extents) : undefined;
    const { logits: data, ...rows } = await this.#by((side) => side.lens({ batch, headScales }, chosen, top as Count, ids, all));
    return { layers: chosen, inputIds: batch.ids, ...rows, ...(data && { logits: { shape, data } }) };
  }

  async logProbs(input: ModelInput, given: EditedOptions = {}): Promise<LogProbs> {
    const options = readOptions(given, editedNames, 'logProbs');
    const edited = await this.#edited(input, options);
    const { probabilities, ranks } = await this.#by((side) => side.logProbabilities(edited));
    return { ids: edited.batch.ids.slice(1), values: probabilities, ranks };
  }

  async measure(input: ModelInput, metric: Metric, given: EditedOptions = {}): Promise<number> {
    const options = readOptions(given, editedNames, 'measure');
    const read = readMetric(metric, this.#engine.info.vocabSize);
    const edited = await this.#edited(input, options);
    const resolved = await this.#resolved(read);
    return this.#by((side) => side.measure(edited, resolved));
  }

  async logitAttribution(input: ModelInput, metric: LogitDifference, given: AnalysisOptions = {}): Promise<LogitAttribution> {
    const options = readOptions(given, analysisNames, 'logitAttribution');
    const read = readMetric(metric, this.#engine.info.vocabSize);
    if (read.kind !== 'logitDifference') throw optionError('metric', 'a difference of logits, { token, against }', 'another metric');
    const model = onThisThread(this.#engine);
    const [batch] = await this.#inputs([[input, 'input']], options);
    const { heads, ...others } = core.logitAttribution(model, batch as core.Input, await this.#resolved(read));
    const { numLayers, numHeads } = this.#engine.info;
    return { heads: { shape: [numLayers, numHeads], data: heads }, ...others };
  }

  async patch(clean: ModelInput, corrupt: ModelInput, metric: Metric, given: PatchOptions = {}): Promise<PairResults> {
    const { site, by, ...options } = readOptions(given, patchNames, 'patch');
    const places = this.#places(site, by);
    const read = readMetric(metric, this.#engine.info.vocabSize);
    const begin = this.#checkSweep(options, 'patch');
    const inputs = await this.#pair(clean, corrupt, options);
    const resolved = await this.#resolved(read);
    const results = await begin((side) => side.patch(inputs, resolved, ...places));
    return this.#pairResults(results);
  }

  async attributionPatch(clean: ModelInput, corrupt: ModelInput, metric: Metric, given: AttributionPatchOptions = {}): Promise<PairResults> {
    const { site, by, positions = false, ...options } = readOptions(given, attributionNames, 'attributionPatch');
    const places = this.#places(site, by);
    checkFlag(positions, 'positions');
    const read = readMetric(metric, this.#engine.info.vocabSize);
    const model = onThisThread(this.#engine);
    const inputs = await this.#pair(clean, corrupt, options);
    const { resolved, value } = await this.#withSlopes(model, read, inputs[0]);
    const found = core.attributionPatch(model, inputs, resolved, ...places, positions);
    const corrupted = read.evaluate?.(core.lastLogits(model, inputs[1])) ?? found.corrupt;
    return this.#pairResults({ ...found, clean: value ?? found.clean, corrupt: corrupted }, positions ? [inputs[0].batch.tokens] : []);
  }

  async ablate(texts: readonly ModelInput[], metric: Metric, given: AblateOptions = {}): Promise<PartResults> {
    const { ablation = 'zero', site = 'z', decoderInputs, ...options } = readOptions(given, ablateNames, 'ablate');
    const code = ablations[checkChoice(ablation, namesOf(ablations), 'ablation')];
    const place = siteOf(checkChoice(site, ['z', 'cross_z'], 'site'), 'site');
    const read = readMetric(metric, this.#engine.info.vocabSize);
    if (!Array.isArray(texts) || texts.length === 0 || typeof texts[0] === 'number') {
      throw optionError('texts', 'an array of texts or of token ids, not empty', describe(texts));
    }
    const decoders = this.#decoders(decoderInputs, texts.length);
    const begin = this.#checkSweep(options, 'ablate');
    const inputs = await this.#inputs(
      entriesOf(texts, 'texts').map((text, at) => [text, `texts[${at}]`]),
      options,
    );
    const resolved = await this.#resolved(read);
    const sources = inputs.map(({ batch }) => batch.ids);
    const tokenizer = decoders && (await this.#parts.findTokenizer().catch(() => undefined));
    const all = { texts: decoders?.map((idsOf) => idsOf(tokenizer)) ?? sources, sources: decoders && sources };
    const scales = inputs[0]?.headScales;
    const { clean, values } = await begin((side) => side.ablate(all, scales, resolved, code, place));
    return { clean, values: { shape: [this.#engine.info.numLayers, this.#engine.info.numHeads], data: values } };
  }

  async gradients(input: ModelInput, metric: Metric, places: readonly GradientPlace[], given: AnalysisOptions = {}): Promise<readonly ModelArray[]> {
    const options = readOptions(given, analysisNames, 'gradients');
    const read = readMetric(metric, this.#engine.info.vocabSize);
    const model = onThisThread(this.#engine);
    if (!Array.isArray(places)) throw optionError('places', 'an array of { site, layer }', describe(places));
    const wanted = readPlaces(places, 'places', this.#engine, false);
    const [batch] = (await this.#inputs([[input, 'input']], options)) as [core.Input];
    const { resolved } = await this.#withSlopes(model, read, batch);
    const shapes = wanted.map((place) => shapeOf(place, this.#engine.info, { tokens: batch.batch.tokens }));
    const found = await named('places', () => core.gradients(model, batch, resolved, wanted, shapes as unknown as Extents[]));
    return shapes.map((shape, at) => ({ shape, data: found[at] as ModelArray['data'] }));
  }

  /** What makes the decoder's ids of each text; undefined for a model with one stack. Throws `E_OPTION`. */
  #decoders(given: unknown, count: number): ReturnType<typeof decoderInputOf>[] | undefined {
    const { info } = this.#engine;
    const isList = Array.isArray(given) && given.length === count;
    if (info.encoder === undefined && given === undefined) return undefined;
    if (info.encoder === undefined) throw optionError('decoderInputs', `none for ${info.modelType}`, describe(given));
    if (!isList) throw optionError('decoderInputs', `an array with what the decoder has for each of ${count} texts`, describe(given));
    return entriesOf(given, 'decoderInputs').map((each) => decoderInputOf(each, info));
  }

  /** Copies the inputs before the first `await`, and loads the core's analyses. */
  async #inputs(
    given: readonly (readonly [input: unknown, argument: string])[],
    { headScales, addSpecialTokens }: AnalysisOptions,
  ): Promise<core.Input[]> {
    const scales = checkScales(headScales, this.#engine.info);
    this.#engine.assertLive();
    const reading = given.map(([input, argument]) => this.#sequence(input, argument, { addSpecialTokens }));
    const [batches] = await Promise.all([Promise.all(reading), this.#engine.load('analyses')]);
    return batches.map((batch) => ({ batch, headScales: scales }));
  }

  async #edited(input: unknown, { edits, ...options }: EditedOptions): Promise<core.Input> {
    const read = readEdits(edits, this.#engine);
    const [{ batch, headScales }] = (await this.#inputs([[input, 'input']], options)) as [core.Input];
    checkParts(read, this.#engine.info, { tokens: batch.tokens });
    return { batch: { ...batch, edits: read }, headScales };
  }

  async #pair(clean: unknown, corrupt: unknown, options: AnalysisOptions): Promise<[clean: core.Input, corrupt: core.Input]> {
    const both = Object.entries({ clean, corrupt }).map(([argument, input]) => [input, argument] as const);
    return (await this.#inputs(both, options)) as [core.Input, core.Input];
  }

  /** The numbers of a site and a way to divide it in the core. */
  #places(site: unknown, by: unknown = 'head') {
    const way = parts[checkChoice(by as keyof typeof parts, namesOf(parts), 'by')];
    return [siteOf(site ?? (by === 'head' ? 'z' : 'resid_pre'), 'site'), way] as const;
  }

  /** The id of a token. Throws `E_OPTION` for a text that is not one token. */
  async #idOf(token: Token, argument: string): Promise<Int32> {
    if (typeof token === 'number') return token as Int32;
    const { ids, tokens } = encodeText(await this.#parts.findTokenizer(), token, { addSpecialTokens: false }, this.#engine.info.causal);
    if (ids.length === 1) return ids[0] as Int32;
    const list = ids.map((id, at) => `${id} (${quoted(tokens[at] ?? '')})`).join(', ');
    throw optionError(argument, 'a text that is one token', `${quoted(token)}, which is ${ids.length === 0 ? 'none' : list}`);
  }

  async #resolved({ kind, position, token = 0, against = 0, evaluate }: ReadMetric): Promise<core.CoreMetric> {
    const [id, other] = await Promise.all([this.#idOf(token, 'metric.token'), this.#idOf(against, 'metric.against')]);
    return { kind: metricKinds[kind], position, token: id, against: other, evaluate };
  }

  /** Computes on a GPU, in workers or with the core of this thread; the CPU goes on where a GPU of device 'auto' does not. */
  async #by<R>(compute: (side: core.PassAnalyses) => Awaitable<R>): Promise<R> {
    const engine = this.#engine;
    try {
      const elsewhere = (await engine.analyses?.()) as core.PassAnalyses | undefined;
      if (elsewhere !== undefined) return await compute(elsewhere);
    } catch (error) {
      if (!engine.recovers?.(error)) throw error;
    }
    const cpu = engine.cpu ?? engine;
    return compute(((await cpu.analyses?.()) as core.PassAnalyses | undefined) ?? new core.CoreAnalyses(onThisThread(cpu)));
  }

  /** A metric that the core can differentiate, and its value if a function of the caller computes it. */
  async #withSlopes(model: CoreModel, read: ReadMetric, input: core.Input): Promise<{ resolved: core.CoreMetric; value?: number }> {
    const resolved = await this.#resolved(read);
    if (read.evaluate === undefined) return { resolved };
    const slopes = new Float32Array(this.#engine.info.vocabSize);
    const value = read.evaluate(core.lastLogits(model, input), slopes);
    return { resolved: { ...resolved, slopes }, value };
  }

  #pairResults(
    { clean, corrupt, parts: count, values }: { clean: number; corrupt: number; parts: number; values: ModelArray['data'] },
    more: readonly number[] = [],
  ): PairResults {
    return { clean, corrupt, values: { shape: [this.#engine.info.numLayers, count, ...more], data: values } };
  }

  /** Checks the options of a sweep, and returns what runs it: other tasks get their turn between runs. */
  #checkSweep({ signal, onProgress }: SweepOptions, what: string) {
    checkSignal(signal);
    checkCallback(onProgress, 'onProgress');
    this.#engine.assertLive();
    const run = async (sweep: core.AnalysisSweep) => {
      try {
        const turn = new Turn();
        for (;;) {
          const done = await sweep.next();
          onProgress?.(done, this.#pairResults(sweep.results()).values);
          if (done === 1) return sweep.results();
          if (turn.isLong) await turn.end();
          if (signal?.aborted) throw abortedError(signal, what);
          this.#engine.assertLive();
        }
      } finally {
        sweep.dispose();
      }
    };
    return async (make: (side: core.PassAnalyses) => core.AnalysisSweep) => {
      if (signal?.aborted) throw abortedError(signal, what);
      return this.#by((side) => run(make(side)));
    };
  }
}
