// The visitor's own model: its attention weights on a text, its continuation of a text, and the similarity of sentences.

import { openModel, type GeneratedToken, type Model, type ModelArray, type ModelImage, type OpenModelOptions } from 'multihead/models';
import type { Matrix } from '../attention/matrix.js';
import type { LayerHeads, NextWords } from '../attention/messages.js';
import { printable } from '../base/format.js';
import { failureOf, type Failure } from '../workers/protocol.js';
import { isGguf, weightBytes } from './folder_files.js';
import { labelOf } from './labels.js';
import { Laboratory } from './laboratory.js';
import { configOf, readLayer, whyNot } from './layer_heads.js';
import { englishName, formatBytes, isWriter, mostTokens } from './limits.js';
import type { Change, GivenFile, GivenFiles, LikelyText, Next, OpenedModel, Similarities, TextAttention } from './messages.js';
import { isOfGpu, lossOf, placeOf, refusalOf, type DeviceChoice, type ModelPlace } from './place.js';
import { weightsFor, type WeightChoice } from './weights.js';

/** Most bytes of the maps of a picture, which are copied once. */
const mostMapBytes = 400e6;
/** Largest files of a model that lives in workers. */
const mostInWorkers = 2 ** 32;
/** Most bytes of weights of a model that is opened again on one thread, for gradients: they are in memory twice. */
const mostTwice = 1e9;
const mostNew = 24;
/** Number of next tokens, or classes, whose probabilities are shown. */
const mostLikely = 5;

/** Read when a model is opened, to see whether the tokenizer belongs to it. */
const trialText = 'The black cat sat on the mat.';

type Workers = Pick<OpenModelOptions, 'workers' | 'worker'>;

export interface Opening {
  readonly device?: DeviceChoice | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((loaded: number, total: number) => void) | undefined;
}

interface Encoded {
  readonly ids: readonly number[];
  /** The tokens as the vocabulary spells them; undefined if the text is token ids. */
  readonly tokens: readonly string[] | undefined;
}

/** A folder without preprocessor_config.json has the preparation of ViT, in the size of its configuration. */
async function preprocessorFor(given: GivenFiles): Promise<GivenFile[]> {
  const path = 'preprocessor_config.json';
  // The package reports a wrong configuration.
  const { image_size: size } = (await configOf(given).catch(() => ({}))) as { image_size?: unknown };
  if (typeof size !== 'number' || given.files.some((each) => each.path === path)) return [];
  return [{ path, file: new File([JSON.stringify({ size })], path) }];
}

export class ModelSession {
  readonly #workers: Workers;
  #model: Model | undefined;
  #readsText = false;
  #files: GivenFiles | undefined;
  #noSteps = '';
  /** The tokens of tokenizer.json, read for the first part of a character. */
  #vocabulary: Promise<ReadonlyMap<number, string>> | undefined;
  #layer: { readonly place: number; readonly headsOf: Awaited<ReturnType<typeof readLayer>> } | undefined;
  #generation: AsyncGenerator<GeneratedToken> | undefined;
  /** Continues the text after these new tokens. */
  #generate: (written: readonly number[]) => AsyncGenerator<GeneratedToken> = () => this.#generation!;
  #written: number[] = [];
  #reopen: () => Promise<Model> = () => Promise.reject(new Error('No model is open.'));
  #laboratory: Laboratory | undefined;
  #isGpuAlone = false; // true for a model that only the GPU has
  /** A copy of the model on this thread, which computes gradients. */
  #beside: Model | undefined;
  #refusal = ''; // why a model for the GPU is not there

  /** `workers`: where models live; by default in this thread. */
  constructor(workers: Workers = {}) {
    this.#workers = workers;
  }

  /** Replaces the model. Keeps the old model if the files are not valid. */
  async open(given: GivenFiles, choice: WeightChoice, { device = 'auto', signal, onProgress }: Opening = {}): Promise<OpenedModel> {
    const weights = weightsFor(choice, weightBytes(given));
    const files = [...given.files, ...(await preprocessorFor(given))].map(({ path, file }) =>
      Object.defineProperty(file, 'webkitRelativePath', { value: path, configurable: true }),
    );
    // Workers hold a part of the weights each. A model that is too large for a page is refused at once, not once it has taken all memory.
    const place = weightBytes(given) <= mostInWorkers ? this.#workers : {};
    // The page's own model has the same numbers everywhere.
    const isAuto = device === 'auto' && given.name !== englishName && 'gpu' in (globalThis.navigator ?? {});
    const openOn = (on: DeviceChoice, workers: Workers): Promise<Model> => openModel(files, { weights, device: on, signal, onProgress, ...workers });
    let refusal = '';
    const model = await openOn(device === 'auto' && !isAuto ? 'cpu' : device, device === 'gpu' ? {} : place).catch((error: unknown) => {
      if (device !== 'gpu' || !isOfGpu(failureOf(error))) throw error;
      refusal = refusalOf(failureOf(error));
      return openOn('cpu', place);
    });
    const isOneFile = given.files.some(isGguf);
    const noSteps = isOneFile
      ? 'The steps read safetensors files, and this model is a GGUF file'
      : whyNot(model.info, await configOf(given), mostTokens);
    let readsText = given.files.some(({ path }) => path === 'tokenizer.json');
    try {
      // The tokenizer of a GGUF file may be of a kind that is not read.
      if (isOneFile)
        readsText = await model.encode(trialText).then(
          () => true,
          (error: { code?: string }) => error.code !== 'E_OPTION',
        );
      if (readsText) checkRange(model, (await model.encode(trialText)).ids, true);
    } catch (error) {
      model.dispose();
      throw error;
    }
    this.close();
    this.#model = model;
    this.#readsText = readsText;
    this.#files = given;
    this.#noSteps = noSteps;
    [this.#isGpuAlone, this.#refusal] = [device === 'gpu' && refusal === '', refusal];
    this.#reopen = () => openModel(files, { weights });
    return { info: { ...model.info }, weights, readsText, noSteps };
  }

  /** Returns where the model computes; undefined if none is open. */
  place(): ModelPlace | undefined {
    return this.#model && placeOf(this.#model, this.#refusal);
  }

  /** Goes on with the processor after a failure of the GPU that alone has the model; false after another failure. */
  async leaveGpu(failure: Failure): Promise<boolean> {
    if (!this.#isGpuAlone || !isOfGpu(failure)) return false;
    const lost = this.#opened();
    this.#model = this.#beside ?? (await this.#reopen());
    [this.#beside, this.#isGpuAlone, this.#refusal] = [undefined, false, lossOf(failure)];
    lost.dispose();
    this.#generation &&= this.#generate(this.#written);
    return true;
  }

  laboratory(): Laboratory {
    return (this.#laboratory ??= new Laboratory({
      model: () => this.#opened(),
      forGradients: () => this.#forGradients(),
      read: (text) => this.#read(text),
      label: (id) => this.#label(id),
      readsText: this.#readsText,
    }));
  }

  /** Gradients need the model on this thread: one in workers or on a GPU is opened again. */
  async #forGradients(): Promise<Model> {
    const model = this.#opened();
    if (model.workers === 0 && !this.#isGpuAlone) return model;
    const { weightBytes: bytes } = model.info;
    if (bytes <= mostTwice) return (this.#beside ??= await this.#reopen());
    throw new Error(`This page estimates with models of up to ${formatBytes(mostTwice)} of weights; this one has ${formatBytes(bytes)}.`);
  }

  async attend(text: string): Promise<TextAttention> {
    const model = this.#opened();
    const { ids, labels, found } = await this.#read(text);
    const { numLayers, numHeads } = model.info;
    if (ids.length === 0) {
      return { ids, side: 0, labels, weights: { shape: [numLayers, numHeads, 0, 0], data: new Float32Array() }, found, classes: [] };
    }
    if (model.encoder) return { ids, side: 0, labels, ...(await this.#write(ids)), found, classes: [] };
    const weights = checked(await model.attentions(ids));
    return { ids, side: 0, labels, weights, found, classes: await this.#classes(ids) };
  }

  /** What a model with encoder and decoder writes, and where each new token looks in the text that it reads. */
  async #write(ids: readonly number[]): Promise<Required<Pick<TextAttention, 'written' | 'weights'>>> {
    const model = this.#opened();
    const { ids: chosen } = await model.complete(ids, { maxNewTokens: mostNew, numBeams: 1 });
    const decoderInput = [model.info.decoderStart!, ...chosen.slice(0, -1)];
    const weights = checked(await model.crossAttentions(ids, { decoderInput }));
    return { written: await Promise.all(chosen.map((id) => this.#label(id))), weights };
  }

  async heads(text: string, layer: number): Promise<LayerHeads> {
    const model = this.#opened();
    if (this.#noSteps) throw new Error(this.#noSteps);
    const { ids, labels, found } = await this.#read(text);
    if (ids.length === 0) throw new Error('There is no text for the model');
    const place = Math.min(layer, model.info.numLayers - 1);
    if (this.#layer?.place !== place) this.#layer = { place, headsOf: await readLayer(this.#files!, model.info, place) };
    const { headsOf } = this.#layer;
    if (!this.#readsText || !isWriter(model.info))
      return headsOf(labels, checked((await model.forward(ids, { return: ['hiddenStates'] })).hiddenStates));
    const { hiddenStates, logits } = await model.forward(ids, { return: ['hiddenStates', 'logits'] });
    return { ...headsOf(labels, checked(hiddenStates)), next: found > ids.length ? undefined : await this.#nextWords(ids, logits.data) };
  }

  /** The likeliest next tokens by the logits after the last token, and what each adds to the text. */
  async #nextWords(ids: readonly number[], logits: Float32Array): Promise<NextWords> {
    const model = this.#opened();
    const begun = await model.decode(ids);
    const likeliest = shares(logits.subarray(-model.info.vocabSize)).map(async ({ at, share }) => {
      const whole = await model.decode([...ids, at]);
      // A part of a character cannot be written.
      const written = whole.startsWith(begun) && !whole.endsWith('\ufffd') ? whole.slice(begun.length) : '';
      return { word: await this.#label(at), share, written };
    });
    return { words: await Promise.all(likeliest), unknown: 0 };
  }

  /** The first tokens of a text. */
  async #read(text: string): Promise<{ ids: readonly number[]; labels: readonly string[]; found: number }> {
    const { ids: all, tokens } = await this.#encode(text);
    const ids = all.slice(0, Math.min(mostTokens, this.#opened().info.maxTokens || mostTokens));
    const labels = await Promise.all(ids.map((id, i) => (tokens ? this.#label(id, tokens[i]) : String(id))));
    return { ids, labels, found: all.length };
  }

  async look(image: ModelImage): Promise<TextAttention> {
    const model = this.#opened();
    const { imageSize, patchSize, maxTokens, numLayers, numHeads } = model.info;
    const side = Math.floor(imageSize / patchSize);
    const registers = maxTokens - side ** 2 - 1;
    if (registers < 0) throw new Error('This page shows models with a class token before the patches of a picture; this one has none.');
    const bytes = 4 * numLayers * numHeads * maxTokens ** 2;
    if (bytes > mostMapBytes)
      throw new Error(`The maps of this model need ${formatBytes(bytes)} of memory; this page shows up to ${formatBytes(mostMapBytes)}.`);
    const weights = checked(await model.attentions([], { image }));
    const before = ['[class]', ...Array.from({ length: registers }, (_, i) => `register ${i + 1}`)];
    const labels = [...before, ...Array.from({ length: side ** 2 }, (_, i) => `patch ${Math.floor(i / side) + 1}, ${(i % side) + 1}`)];
    return { ids: [...labels.keys()], side, labels, weights, found: labels.length, classes: await this.#classes([], image) };
  }

  /** Reads the text into an empty cache and chooses the next token; null if the model ends at once. */
  async start(text: string, change?: Change): Promise<Next | null> {
    const { ids } = await this.#encode(text);
    if (ids.length === 0) throw new Error('There is no text to continue.');
    const edits = change && (await this.laboratory().editsFor(change));
    await this.#generation?.return(undefined);
    this.#generation = undefined;
    this.#written = [];
    this.#generate = (written) => {
      const prompt = written.length === 0 && this.#readsText ? text : [...ids, ...written];
      return this.#opened().generate(prompt, { maxNewTokens: mostNew - written.length, topTokens: mostLikely, edits });
    };
    this.#generation = this.#generate([]);
    return this.next();
  }

  /** Chooses the next token; null after the last one. */
  async next(): Promise<Next | null> {
    if (!this.#generation) throw new Error('Nothing was started.');
    const begin = performance.now();
    const { value, done } = await this.#generation.next();
    const milliseconds = performance.now() - begin;
    if (done) {
      this.#generation = undefined;
      return null;
    }
    this.#written.push(value.token);
    const likeliest = await Promise.all(
      value.topTokens.map(async ({ token, probability }) => ({ label: await this.#label(token), share: probability })),
    );
    return { text: this.#readsText ? value.text : ` ${value.token}`, likeliest, milliseconds };
  }

  /** The cosine of the angle between the vectors of each two texts. */
  async compare(texts: readonly string[]): Promise<Similarities> {
    const model = this.#opened();
    const most = model.info.maxTokens || Infinity;
    const inputs = await Promise.all(texts.map(async (text) => (await this.#encode(text)).ids.slice(0, most)));
    const vectors = await model.embed(inputs);
    const data = vectors.flatMap((a) => vectors.map((b) => a.reduce((sum, value, i) => sum + value * b[i]!, 0)));
    return { shape: [texts.length, texts.length], data: Float32Array.from(data) };
  }

  close(): void {
    void this.#generation?.return(undefined);
    this.#generation = undefined;
    this.#model?.dispose();
    this.#beside?.dispose();
    this.#beside = undefined;
    this.#layer = this.#laboratory = this.#vocabulary = undefined;
    this.#model = undefined;
  }

  /** The likeliest classes of the whole input; none if the model is no classifier. */
  async #classes(ids: readonly number[], image?: ModelImage): Promise<LikelyText[]> {
    const model = this.#opened();
    if (model.info.output !== 'classification') return [];
    const { data } = await model.logits(ids, { image });
    return shares(data).map(({ at, share }) => ({ label: printable(model.labels[at]!), share }));
  }

  #opened(): Model {
    if (!this.#model) throw new Error('No model is open.');
    return this.#model;
  }

  async #label(id: number, spelled?: string): Promise<string> {
    if (!this.#readsText) return String(id);
    const model = this.#opened();
    const decoded = await model.decode([id]);
    const ends = decoded === '' && spelled === undefined && model.info.endIds.includes(id);
    return ends ? 'end of the text' : labelOf(id, decoded, decoded.includes('\ufffd') ? (spelled ?? (await this.#spelling(id))) : spelled);
  }

  /** A token as tokenizer.json spells it; undefined without that file. */
  async #spelling(id: number): Promise<string | undefined> {
    const file = this.#files?.files.find(({ path }) => path === 'tokenizer.json')?.file;
    this.#vocabulary ??= file?.text().then((text) => {
      const { vocab } = (JSON.parse(text) as { model: { vocab: Record<string, number> | [token: string, score: number][] } }).model;
      return new Map(Array.isArray(vocab) ? vocab.map(([token], at) => [at, token]) : Object.entries(vocab).map(([token, at]) => [at, token]));
    });
    return (await this.#vocabulary?.catch(() => undefined))?.get(id);
  }

  async #encode(text: string): Promise<Encoded> {
    const model = this.#opened();
    if (this.#readsText) {
      const { ids, tokens } = await model.encode(text);
      checkRange(model, ids, true);
      return { ids, tokens };
    }
    const parts = text.split(/[\s,]+/).filter((part) => part !== '');
    if (!parts.every((part) => /^\d{1,9}$/.test(part))) {
      throw new Error(`Without tokenizer.json this model reads numbers of tokens, such as 5 17 9, and no words.`);
    }
    const ids = parts.map(Number);
    checkRange(model, ids, false);
    return { ids, tokens: undefined };
  }
}

/** The places of the largest logits, with their softmax probabilities. */
function shares(logits: Float32Array): { at: number; share: number }[] {
  const top = logits.reduce((most, value) => Math.max(most, value), -Infinity);
  const sum = logits.reduce((total, value) => total + Math.exp(value - top), 0);
  const largest: number[] = [];
  // Sorting all logits of a vocabulary takes longer than a short pass.
  for (const [at, value] of logits.entries()) {
    if (largest.length === mostLikely && value <= logits[largest.at(-1)!]!) continue;
    const place = largest.findIndex((each) => logits[each]! < value);
    largest.splice(place < 0 ? largest.length : place, 0, at);
    largest.length = Math.min(largest.length, mostLikely);
  }
  return largest.map((at) => ({ at, share: Math.exp(logits[at]! - top) / sum }));
}

/** Throws if a weight is not a number. */
function checked({ shape, data }: ModelArray): Matrix {
  const wrong = data.findIndex((weight) => Number.isNaN(weight));
  if (wrong < 0) return { shape, data };
  const layer = Math.floor((wrong * shape[0]!) / data.length) + 1;
  throw new Error(`From layer ${layer} on this model computes no numbers (NaN): its file is damaged.`);
}

/** Throws if an id is not in the model's vocabulary. */
function checkRange({ info }: Model, ids: readonly number[], ofTokenizer: boolean): void {
  // A tokenizer without a token for unknown words gives undefined.
  if (ids.some((id) => id === undefined)) throw new Error('tokenizer.json has no token for a part of this text.');
  const wrong = ids.find((id) => id >= info.vocabSize);
  if (wrong === undefined) return;
  throw new Error(
    ofTokenizer
      ? `tokenizer.json is of another model: it has a token ${wrong}, and this model knows those from 0 to ${info.vocabSize - 1}.`
      : `This model knows the tokens from 0 to ${info.vocabSize - 1}, not ${wrong}.`,
  );
}
