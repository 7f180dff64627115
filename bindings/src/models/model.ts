// The object that openModel() gives: texts and options of passes, embeddings and maps. An engine computes.

import { optionError, shapeError } from '../runtime/errors.js';
import { checkChoice, checkCount, checkNames, type Names, plain, readOptions } from '../runtime/options.js';
import { makeDisposable } from '../runtime/symbol_dispose.js';
import { describe, nameObject } from '../runtime/tensor.js';
import { pristine } from '../runtime/typed_arrays.js';
import type { AttentionsOptions, ChatInput, ChatMessage, Completion, DefaultForwardResult, EmbedImagesOptions } from '../types/models.js';
import type { EmbedOptions, EncodeOptions, FinishReason, ForwardOptions, ForwardOutput, ForwardResult, GeneratedToken } from '../types/models.js';
import type { GenerateOptions, InputOptions, LogitsOptions, Model, ModelAnalyses, ModelArray, ModelImage, ModelInfo } from '../types/models.js';
import type { ModelInput, ModelTrainer, ModelTrainerOptions, Prefix, PrefixOptions, RunOptions, RunResult, TextTokenizer } from '../types/models.js';
import type { Count, Extents, Int64 } from '../types/wire.js';
import { checkChat, encodePrompt, isChat } from './chat.js';
import type { Batch, ModelEngine, Place } from './core/engine.js';
import { onThisThread } from './core/model.js';
import { decoderInputOf } from './decoder_input.js';
import { checkIds, checkScales, checkTokens, copied, copyImage, textOrIds } from './inputs.js';
import type { ModelParts } from './parts.js';
import { shapeOf } from './core/sites.js';
import { checkParts, named, readEdits, readPlaces } from './sites.js';
import { encodeText, textOf } from './tokenizer.js';

const outputNames = ['hiddenStates', 'lastHiddenState', 'logits', 'poolerOutput', 'encoderLastHiddenState'] as const;
const inputNames = {
  ...{ pair: plain, addSpecialTokens: plain, tokenTypes: plain, pixels: plain, image: plain, headScales: plain },
  ...{ edits: plain, decoderInput: plain, encoderEdits: plain },
} satisfies Names<InputOptions>;
const encodeNames = { addSpecialTokens: plain } satisfies Names<EncodeOptions>;

const logitsNames = { positions: plain, ...inputNames } satisfies Names<LogitsOptions>;
const attentionsNames = { layer: plain, head: plain, ...inputNames } satisfies Names<AttentionsOptions>;
const runNames = { capture: plain, logits: plain, ...inputNames } satisfies Names<RunOptions>;
const forwardNames = { return: plain, ...inputNames } satisfies Names<ForwardOptions<undefined>>;

const analysisNames = ['lens', 'logProbs', 'measure', 'logitAttribution', 'patch', 'attributionPatch', 'ablate', 'gradients'] as const;

async function completed(steps: AsyncGenerator<GeneratedToken>): Promise<Completion> {
  const ids: number[] = [];
  let text = '';
  let accepted = 0;
  let finishReason: FinishReason = 'length';
  for await (const step of steps) {
    ids.push(step.token);
    text += step.text;
    accepted += Number(step.accepted);
    finishReason = step.finishReason ?? finishReason;
  }
  return { text, ids, accepted, finishReason };
}

/** True for several prompts: an array of numbers is one, and so is one of messages. */
const areMany = (prompt: ChatInput | readonly ChatInput[]): prompt is readonly ChatInput[] =>
  Array.isArray(prompt) && (typeof prompt[0] === 'string' || Array.isArray(prompt[0]) || prompt[0] instanceof Int32Array);

/** What computes a model, and what it has besides. Throws `E_OPTION` for something else than a model. */
export let insideOf: (model: unknown) => { readonly engine: ModelEngine; readonly parts: ModelParts };

export class OpenedModel implements Model {
  static {
    insideOf = (model) => {
      if (typeof model !== 'object' || model === null || !(#engine in model))
        throw optionError('model', 'one that openModel() has opened', describe(model));
      return { engine: model.#engine, parts: model.#parts };
    };
    for (const name of analysisNames) {
      const value = function (this: OpenedModel, ...given: Parameters<ModelAnalyses[typeof name]>) {
        return this.#analyze(name, given);
      };
      Object.defineProperty(OpenedModel.prototype, name, { value });
    }
  }

  // The analyses, on the prototype.
  declare readonly lens: ModelAnalyses['lens'];
  declare readonly logProbs: ModelAnalyses['logProbs'];
  declare readonly measure: ModelAnalyses['measure'];
  declare readonly logitAttribution: ModelAnalyses['logitAttribution'];
  declare readonly patch: ModelAnalyses['patch'];
  declare readonly attributionPatch: ModelAnalyses['attributionPatch'];
  declare readonly ablate: ModelAnalyses['ablate'];
  declare readonly gradients: ModelAnalyses['gradients'];

  readonly info: ModelInfo;
  readonly labels: readonly string[];
  readonly encoder: Model | undefined;
  readonly #engine: ModelEngine;
  readonly #parts: ModelParts;
  readonly vision: Model | undefined;

  /** Defined on the prototype by the constructor: see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  constructor(engine: ModelEngine, parts: ModelParts, vision?: Model) {
    makeDisposable(OpenedModel);
    this.encoder = engine.encoder && new OpenedModel(engine.encoder, parts);
    const { endIds, rules, generation, ...rest } = engine.info;
    const frozen = { endIds: Object.freeze([...endIds]), rules: Object.freeze(rules), generation: Object.freeze(generation) };
    this.info = Object.freeze({ ...rest, ...frozen, encoder: this.encoder?.info });
    const { output, numLabels } = engine.info;
    this.labels = Object.freeze(output === 'questionAnswering' ? ['start', 'end'] : [...parts.labelsOf(numLabels)]);
    this.#engine = engine;
    this.#parts = parts;
    this.vision = vision;
    nameObject(this, 'a model');
    Object.freeze(this);
  }

  /** Vue's marker (set by markRaw()) that makes ref() and reactive() store the object itself instead of a proxy. */
  get __v_skip(): true {
    return true;
  }

  get workers(): number {
    return this.#engine.workers;
  }

  get device(): string {
    return this.#engine.device;
  }

  get disposed(): boolean {
    return this.#engine.disposed;
  }

  dispose(): void {
    this.#engine.dispose();
    this.vision?.dispose();
  }

  async encode(text: string | readonly ChatMessage[], given: EncodeOptions = {}): Promise<{ ids: readonly number[]; tokens: readonly string[] }> {
    const options = readOptions(given, encodeNames, 'encode');
    const checked = isChat(text) ? checkChat(text) : checkText(text, 'text');
    this.#engine.assertLive();
    const { ids, tokens } = await encodePrompt(this.#parts, checked, options, this.#reader);
    return { ids, tokens };
  }

  async decode(ids: Int32Array | readonly number[]): Promise<string> {
    const checked = [...checkIds(ids, 'ids')];
    return textOf(await this.#tokenizer(), checked);
  }

  generate(prompt: ChatInput, options: GenerateOptions = {}): AsyncGenerator<GeneratedToken, void, undefined> {
    this.#engine.assertLive();
    return this.#generator.generate(this.#engine, this.#parts, this.info, prompt, options);
  }

  async prefix(prompt: ChatInput, options: PrefixOptions = {}): Promise<Prefix> {
    return this.#generator.makePrefix(this.#engine, this.#parts, prompt, options);
  }

  complete(prompts: readonly ChatInput[], options?: GenerateOptions): Promise<Completion[]>;
  complete(prompt: ChatInput, options?: GenerateOptions): Promise<Completion>;
  async complete(prompt: ChatInput | readonly ChatInput[], options: GenerateOptions = {}): Promise<Completion | Completion[]> {
    if (!areMany(prompt)) return completed(this.generate(prompt, options));
    this.#engine.assertLive();
    const { Group, generate, mostTogether } = this.#generator;
    const group = new Group(this.#engine);
    // Each generation copies its prompt and options before the first one runs.
    const texts = Array.from(prompt, (each, at) => generate(this.#engine, this.#parts, this.info, each, options, { group, at }));
    // An error of one generation closes the list: no other begins, and those that run are completed.
    const waiting = (function* () {
      yield* texts.entries();
    })();
    const all: Completion[] = [];
    const run = async (): Promise<void> => {
      for (const [at, steps] of waiting) all[at] = await completed(steps);
    };
    const runs = await Promise.allSettled(Array.from({ length: Math.min(mostTogether, texts.length) }, run));
    for (const each of runs) if (each.status === 'rejected') throw each.reason;
    return all;
  }

  embed(inputs: readonly ModelInput[], options?: EmbedOptions): Promise<Float32Array<ArrayBuffer>[]>;
  embed(input: ModelInput, options?: EmbedOptions): Promise<Float32Array<ArrayBuffer>>;
  async embed(
    inputs: ModelInput | readonly ModelInput[],
    options: EmbedOptions = {},
  ): Promise<Float32Array<ArrayBuffer> | Float32Array<ArrayBuffer>[]> {
    this.#engine.assertLive();
    const isOne = !Array.isArray(inputs) || typeof inputs[0] === 'number';
    const [all, given] = copied([isOne ? [inputs] : inputs, options]) as [readonly ModelInput[], EmbedOptions];
    const [{ embed }] = await Promise.all([import('./embed.js'), this.#engine.load('pooling')]);
    const vectors = await embed(this.#engine, this.#parts, all, isOne, given);
    return isOne ? (vectors[0] as Float32Array<ArrayBuffer>) : vectors;
  }

  attentions(input: ModelInput, options: AttentionsOptions = {}): Promise<ModelArray> {
    return this.#maps(input, readOptions(options, attentionsNames, 'attentions'), false);
  }

  async crossAttentions(input: ModelInput, options: AttentionsOptions = {}): Promise<ModelArray> {
    const read = readOptions(options, attentionsNames, 'crossAttentions');
    if (this.encoder === undefined) throw optionError('model', 'one with an encoder and a decoder', this.info.modelType);
    return this.#maps(input, read, true);
  }

  async embedImages(images: readonly (ModelImage | Float32Array)[], options: EmbedImagesOptions = {}): Promise<Float32Array<ArrayBuffer>[]> {
    this.#engine.assertLive();
    if (this.vision !== undefined) return this.vision.embedImages(images, options);
    if (!this.info.takesPixels) throw optionError('model', 'one that takes images', this.info.modelType);
    if (!Array.isArray(images)) throw optionError('images', 'an array of images', describe(images));
    // Copied before the first await: the caller may change its arrays after the call.
    const copies = images.map((image: unknown, at) => (image instanceof Float32Array ? pristine(image).slice() : copyImage(image, `images[${at}]`)));
    const [{ embedImages }] = await Promise.all([import('./image.js'), this.#engine.load('pooling')]);
    return embedImages(this.#engine, this.#parts.preprocessor, copies, options);
  }

  async similarity(texts: readonly ModelInput[], images: readonly (ModelImage | Float32Array)[]): Promise<ModelArray> {
    const { logitScale, logitBias, modelType } = this.info;
    if (this.vision === undefined) throw optionError('model', 'one of texts and images', modelType);
    // Both copy their inputs before the first await.
    const [ofTexts, ofImages] = await Promise.all([this.embed(texts), this.embedImages(images)]);
    const product = (a: Float32Array, b: Float32Array): number => a.reduce((sum, value, at) => sum + value * (b[at] as number), 0);
    const rows = ofImages.flatMap((image) => ofTexts.map((text) => logitScale * product(image, text) + logitBias));
    return { shape: [ofImages.length, ofTexts.length], data: Float32Array.from(rows) };
  }

  async #maps(input: ModelInput, { layer, head, headScales, ...inputs }: AttentionsOptions, cross: boolean): Promise<ModelArray> {
    const [atLayer, atHead] = [placeOf(layer, 'layer'), placeOf(head, 'head')];
    const scales = checkScales(headScales, this.info);
    const batch = await this.#read(input, inputs);
    const tokens = this.#positions(batch);
    const { numLayers, numHeads } = this.info;
    const wanted = [...(layer === undefined ? [numLayers] : []), ...(head === undefined ? [numHeads] : [])];
    const count = wanted.reduce((product, extent) => product * extent, 1);
    const what = { kind: 'attentions', layer: atLayer, head: atHead, cross } as const;
    const keys = cross ? (batch.source as Int32Array).length : tokens;
    await this.#engine.load('inspection');
    this.#engine.assertLive();
    const outputs = [[count, tokens, keys] as readonly number[] as Extents];
    const [data] = await this.#engine.run({ batch, headScales: scales, what, outputs });
    return { shape: [...wanted, tokens, keys], data: data as ModelArray['data'] };
  }

  async logits(input: ModelInput, given: LogitsOptions = {}): Promise<ModelArray> {
    const { positions = 'last', headScales, ...inputs } = readOptions(given, logitsNames, 'logits');
    const all = checkChoice(positions, ['last', 'all'], 'positions') === 'all';
    const scales = checkScales(headScales, this.info);
    const batch = await this.#read(input, inputs);
    const { logits } = await this.#pass(batch, ['logits'], scales, all);
    return logits;
  }

  forward<const R extends readonly ForwardOutput[]>(input: ModelInput, options: ForwardOptions<R>): Promise<ForwardResult<R>>;
  forward(input: ModelInput, options?: ForwardOptions<undefined>): Promise<DefaultForwardResult>;
  async forward(input: ModelInput, given: ForwardOptions<readonly ForwardOutput[] | undefined> = {}): Promise<DefaultForwardResult> {
    const usual = [this.info.output === 'none' ? 'lastHiddenState' : 'logits'] as const;
    const { return: names = usual, headScales, ...inputs } = readOptions(given, forwardNames, 'forward');
    const wanted = checkNames(names, outputNames, 'return');
    const scales = checkScales(headScales, this.info);
    const { captures: _, ...results } = await this.#pass(await this.#read(input, inputs), wanted, scales, true);
    return results;
  }

  async run(input: ModelInput, given: RunOptions = {}): Promise<RunResult> {
    const { capture, logits = 'all', headScales, ...inputs } = readOptions(given, runNames, 'run');
    const wanted = checkChoice(logits, ['all', 'last', 'none'], 'logits');
    const { output } = this.info;
    if (wanted === 'last' && output !== 'languageModel')
      throw optionError('logits', '"all" or "none" for a model that is no language model', '"last"');
    const scales = checkScales(headScales, this.info);
    const places = readPlaces(capture, 'capture', this.#engine, true);
    const batch = await this.#read(input, inputs);
    const usual = output === 'none' ? 'lastHiddenState' : 'logits';
    return named('capture', () => this.#pass(batch, wanted === 'none' ? [] : [usual], scales, wanted === 'all', places));
  }

  async trainer(options?: ModelTrainerOptions): Promise<ModelTrainer> {
    const given = copied(options) as ModelTrainerOptions | undefined;
    const core = onThisThread(this.#engine);
    const { makeTrainer, WasmModelTrainer } = await import('./trainer.js');
    const made = await makeTrainer(core, given);
    const model = new OpenedModel(made.trained, this.#parts);
    return new WasmModelTrainer(made, model, (input, argument) => model.#sequence(input, argument));
  }

  /** The script of the analyses is loaded with the first one, and until then the caller may change its arrays. */
  async #analyze<N extends keyof ModelAnalyses>(name: N, given: Parameters<ModelAnalyses[N]>): Promise<Awaited<ReturnType<ModelAnalyses[N]>>> {
    const copies = copied(given) as readonly unknown[];
    this.#engine.assertLive();
    const { output, causal, encoder, modelType } = this.info;
    if (output !== 'languageModel' || !causal) throw optionError('model', 'a causal language model', modelType);
    if (encoder !== undefined && name !== 'ablate') throw optionError('model', 'a causal language model without an encoder', modelType);
    const { Analyses } = await import('./analyses.js');
    const analyses = new Analyses(this.#engine, this.#parts, (input, argument, options) => this.#sequence(input, argument, options));
    return (analyses[name] as (...args: readonly unknown[]) => Promise<Awaited<ReturnType<ModelAnalyses[N]>>>)(...copies);
  }

  get #generator(): NonNullable<ModelParts['generator']> {
    if (this.#parts.generator !== undefined) return this.#parts.generator;
    throw optionError('model', 'a causal language model', this.info.modelType);
  }

  #tokenizer(): Promise<TextTokenizer> {
    this.#engine.assertLive();
    return this.#parts.findTokenizer();
  }

  /** The stack that reads a text. */
  get #reader(): ModelInfo {
    return this.info.encoder ?? this.info;
  }

  /** Positions of the hidden states. */
  #positions({ tokens, pixels }: Batch): number {
    return pixels === undefined ? tokens : this.info.maxTokens;
  }

  /** The input of one pass, copied before the first `await`: the caller may change its arrays after the call. */
  async #read(input: unknown, { edits: given, encoderEdits, decoderInput, ...options }: Omit<InputOptions, 'headScales'>): Promise<Batch> {
    const edits = readEdits(given, this.#engine);
    const { encoder } = this.#engine;
    if (encoder === undefined) {
      for (const [name, value] of Object.entries({ decoderInput, encoderEdits })) {
        if (value !== undefined) throw optionError(name, `none for ${this.info.modelType}`, describe(value));
      }
      const batch = await this.#readInput(input, options);
      checkParts(edits, this.info, { tokens: this.#positions(batch) });
      return { ...batch, edits };
    }
    const sourceEdits = readEdits(encoderEdits, encoder, 'encoderEdits');
    const decoderIds = decoderInputOf(decoderInput, this.info);
    const { ids: source } = await this.#readInput(input, options);
    const ids = decoderIds(typeof decoderInput === 'string' ? await this.#tokenizer() : undefined);
    checkTokens(ids.length, this.info.maxTokens, 'decoderInput');
    checkParts(sourceEdits, encoder.info, { tokens: source.length }, 'encoderEdits');
    checkParts(edits, this.info, { tokens: ids.length, source: source.length });
    return { ids, batch: 1, tokens: ids.length as Count, edits, source, sourceEdits };
  }

  async #readInput(
    input: unknown,
    { pair, addSpecialTokens, tokenTypes, pixels, image }: Pick<InputOptions, 'pair' | 'addSpecialTokens' | 'tokenTypes' | 'pixels' | 'image'>,
  ): Promise<Batch> {
    const picture = pixels ?? image;
    if (picture !== undefined) {
      const argument = pixels === undefined ? 'image' : 'pixels';
      if (!this.info.takesPixels) throw optionError(argument, 'none for a model of token ids', describe(picture));
      if (pixels === undefined) return this.#readImage(image);
      if (image !== undefined) throw optionError('image', 'none beside pixels', describe(image));
      if (!(pixels instanceof Float32Array)) throw optionError(argument, 'a Float32Array', describe(pixels));
      return { ids: new Int32Array(), batch: 1, tokens: 0, pixels: pristine(pixels).slice() };
    }
    const { tokenTypes: end, modelType } = this.info;
    if (tokenTypes !== undefined && end === 0) throw optionError('tokenTypes', `none for ${modelType}`, describe(tokenTypes));
    const types = tokenTypes === undefined ? undefined : checkIds(tokenTypes, 'tokenTypes', end);
    const second = pair === undefined ? undefined : checkText(pair, 'pair');
    const sequence = await this.#sequence(input, 'input', { pair: second, addSpecialTokens });
    if (types === undefined) return sequence;
    if (types.length === sequence.tokens) return { ...sequence, tokenTypes: types };
    throw shapeError('tokenTypes', `${sequence.tokens} numbers, one per token`, String(types.length));
  }

  /** An image as pixels. What prepares it is loaded with the first one. */
  async #readImage(image: unknown): Promise<Batch> {
    const copy = copyImage(image, 'image');
    const { pixelsOf } = await import('./image.js');
    return { ids: new Int32Array(), batch: 1, tokens: 0, pixels: pixelsOf(copy, this.#parts.preprocessor, this.info) };
  }

  /** Text or token ids. */
  async #sequence(input: unknown, argument: string, options: Pick<InputOptions, 'pair' | 'addSpecialTokens'> = {}): Promise<Batch> {
    this.#engine.assertLive();
    const { maxTokens, tokenTypes, vocabSize, causal, takesPixels, modelType } = this.#reader;
    if (takesPixels) throw optionError('pixels', `the pixels of an image for ${modelType}, or an image`, 'neither');
    if (typeof input !== 'string') {
      if (options.pair !== undefined) throw optionError('pair', 'none beside token ids', 'a text');
      const ids = checkIds(input, argument, vocabSize, textOrIds);
      checkTokens(ids.length, maxTokens, argument);
      return { ids, batch: 1, tokens: ids.length as Count };
    }
    const encoded = encodeText(await this.#tokenizer(), input, options, causal);
    const ids = checkIds(encoded.ids, 'tokenizer', vocabSize);
    checkTokens(ids.length, maxTokens, argument);
    // RoBERTa has one type of tokens, but its tokenizer gives the second text of a pair another one.
    const types = tokenTypes > 1 ? encoded.token_type_ids : undefined;
    return { ids, batch: 1, tokens: ids.length as Count, ...(types && { tokenTypes: checkIds(types, 'tokenizer', tokenTypes) }) };
  }

  async #pass(
    batch: Batch,
    wanted: readonly ForwardOutput[],
    headScales: Float32Array | undefined,
    all: boolean,
    captures: readonly Place[] = [],
  ): Promise<Record<ForwardOutput, ModelArray> & { readonly captures: readonly ModelArray[] }> {
    const changed = [batch.edits, batch.sourceEdits, captures].some((each) => each !== undefined && each.length > 0);
    const { info } = this;
    const pools = wanted.includes('poolerOutput') || (wanted.includes('logits') && info.output === 'classification');
    const needed = [(changed || wanted.includes('hiddenStates')) && 'inspection', pools && 'pooling'] as const;
    await Promise.all(needed.map((part) => part && this.#engine.load(part)));
    this.#engine.assertLive();
    const tokens = this.#positions(batch);
    const logits: Record<ModelInfo['output'], readonly number[]> = {
      none: [1, 0],
      languageModel: [1, all ? tokens : 1, info.vocabSize],
      maskedLanguageModel: [1, tokens, info.vocabSize],
      classification: [1, info.numLabels],
      tokenClassification: [1, tokens, info.numLabels],
      questionAnswering: [1, tokens, info.numLabels],
    };
    if (wanted.includes('logits') && info.output === 'none') throw optionError('logits', 'a model with logits', `${info.modelType} without`);
    if (wanted.includes('poolerOutput') && !info.hasPooler) throw optionError('poolerOutput', 'a model with a pooler', `${info.modelType} without`);
    const source = batch.source?.length;
    if (wanted.includes('encoderLastHiddenState') && source === undefined) {
      throw optionError('encoderLastHiddenState', 'a model with an encoder and a decoder', info.modelType);
    }
    const shapes: Record<ForwardOutput, readonly number[]> = {
      hiddenStates: [info.numLayers + 1, 1, tokens, info.embedDim],
      lastHiddenState: [1, tokens, info.embedDim],
      logits: logits[info.output],
      poolerOutput: [1, info.embedDim],
      encoderLastHiddenState: [1, source ?? 0, info.embedDim],
    };
    const given = outputNames.map((name) => (wanted.includes(name) ? (shapes[name] as Extents) : undefined));
    const captured = captures.map((place) => shapeOf(place, info, { tokens, source }) as readonly number[] as Extents);
    const results = await this.#engine.run({ batch, headScales, what: { kind: 'forward', captures }, outputs: [...given, ...captured] });
    const one = (name: ForwardOutput): ModelArray => {
      const shape = shapes[name];
      const rest = name === 'hiddenStates' ? [info.numLayers + 1, ...shape.slice(2)] : shape.slice(1);
      const isOne = name === 'logits' && info.output === 'languageModel' && !all;
      return { shape: isOne ? rest.slice(1) : rest, data: results[outputNames.indexOf(name)] as ModelArray['data'] };
    };
    const arrays = Object.fromEntries(wanted.map((name) => [name, one(name)])) as Record<ForwardOutput, ModelArray>;
    const data = (at: number) => results[outputNames.length + at] as ModelArray['data'];
    return { ...arrays, captures: captured.map((shape, at) => ({ shape, data: data(at) })) };
  }
}

/** A layer or head as the core takes it; −1 for all. */
const placeOf = (value: number | undefined, argument: string): Int64 =>
  value === undefined ? (-1 as Int64) : (checkCount(value, argument, 0) as Int64);

function checkText(value: unknown, argument: string): string {
  if (typeof value === 'string') return value;
  throw optionError(argument, 'a text', describe(value));
}
