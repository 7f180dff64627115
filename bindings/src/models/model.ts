// A model in the core: passes, embeddings and maps.

import { modelOutputs, poolings } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { CoreObject } from '../runtime/core_object.js';
import { MultiheadError } from '../runtime/errors.js';
import { call, noSpan, type Operands, type Runtime } from '../runtime/operands.js';
import { checkChoice, checkCount, checkNames, type Names, namesOf, plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type {
  AttentionsOptions,
  EmbedOptions,
  ForwardOptions,
  ForwardOutput,
  ForwardResult,
  GeneratedToken,
  GenerateOptions,
  InputOptions,
  LogitsOptions,
  Model,
  ModelArray,
  ModelInfo,
  ModelInput,
  TextTokenizer,
} from '../types/models.js';
import type { Count, Extents, Int32, Int64, Operand, Span, Uint32 } from '../types/wire.js';
import { generate } from './generate.js';
import { checkIds, entriesOf, ints } from './inputs.js';
import { textOf } from './tokenizer.js';

const outputNames = ['hiddenStates', 'lastHiddenState', 'logits', 'poolerOutput'] as const;
const inputNames = { pair: plain, tokenTypes: plain, pixels: plain, headScales: plain } satisfies Names<InputOptions>;

const embedNames = { pooling: plain, headScales: plain } satisfies Names<EmbedOptions>;
const logitsNames = { positions: plain, ...inputNames } satisfies Names<LogitsOptions>;
const attentionsNames = { layer: plain, head: plain, ...inputNames } satisfies Names<AttentionsOptions>;
const forwardNames = { return: plain, ...inputNames } satisfies Names<ForwardOptions<readonly ForwardOutput[]>>;

/** Sequences of one batch, padded at the end to the longest. */
interface Batch {
  readonly ids: Int32Array;
  readonly batch: Count;
  readonly tokens: Count;
  /** 1 for tokens, 0 for padding; undefined if there is no padding. */
  readonly mask?: Uint8Array | undefined;
  readonly tokenTypes?: Int32Array | undefined;
  readonly pixels?: Float32Array | undefined;
}

/** What openModel() knows of a model besides the core. */
export interface ModelParts {
  readonly findTokenizer: () => Promise<TextTokenizer>;
  /** Of generation_config.json. */
  readonly endIds: readonly number[];
  /** Names of the classes. */
  readonly labelsOf: (count: number) => readonly string[];
  /** Of 1_Pooling/config.json. */
  readonly pooling: 'mean' | 'firstToken';
}

function readInfo(runtime: Runtime, handle: Int32, endIds: readonly number[]): ModelInfo {
  runtime.raw.modelInfo(handle);
  const { output, endIds: own, ...rest } = wire.readModelInfo(runtime.args.results());
  return Object.freeze({
    ...rest,
    output: namesOf(modelOutputs)[output] as ModelInfo['output'],
    endIds: Object.freeze([...new Set([...own, ...endIds])]),
  });
}

export class WasmModel extends CoreObject implements Model {
  readonly info: ModelInfo;
  readonly labels: readonly string[];
  readonly #parts: ModelParts;

  constructor(runtime: Runtime, handle: Int32, parts: ModelParts) {
    const { raw, heap } = runtime;
    const info = readInfo(runtime, handle, parts.endIds);
    heap.count(info.weightBytes);
    super(runtime, handle, { argument: 'model', noun: 'a model' }, {
      what: () => `a model of ${info.weightBytes} bytes`,
      free: () => {
        heap.count(-info.weightBytes);
        if (!raw.dead) raw.modelRelease(handle);
      },
    });
    this.info = info;
    this.labels = Object.freeze([...parts.labelsOf(info.numLabels)]);
    this.#parts = parts;
    Object.freeze(this);
  }

  async encode(text: string): Promise<{ ids: readonly number[]; tokens: readonly string[] }> {
    const { ids, tokens } = (await this.#tokenizer()).encode(checkText(text, 'text'));
    return { ids, tokens };
  }

  async decode(ids: Int32Array | readonly number[]): Promise<string> {
    const checked = [...checkIds(ids, 'ids')];
    return textOf(await this.#tokenizer(), checked);
  }

  generate(prompt: ModelInput, options: GenerateOptions = {}): AsyncGenerator<GeneratedToken, void, undefined> {
    this.assertLive();
    return generate(this.runtime, this, this.#parts.findTokenizer, prompt, options);
  }

  async embed(inputs: readonly ModelInput[], given: EmbedOptions = {}): Promise<Float32Array<ArrayBuffer>[]> {
    const { pooling = this.#parts.pooling, headScales } = readOptions(given, embedNames, 'embed');
    const code = poolings[checkChoice(pooling, namesOf(poolings), 'pooling')];
    if (!Array.isArray(inputs)) {
      throw new MultiheadError('E_OPTION', { argument: 'inputs', expected: 'an array of texts or token ids', got: describe(inputs) });
    }
    if (inputs.length === 0) return [];
    const sequences = await Promise.all(entriesOf(inputs, 'inputs').map(async (input, at) => (await this.#sequence(input, `inputs[${at}]`)).ids));
    const batch = padded(sequences);
    const width = this.info.embedDim;
    const { data } = this.#array([batch.batch, width], (operands, out) => {
      wire.modelEmbed(this.runtime.args, this.#inputs(operands, batch, headScales), code, out);
      operands.run(() => this.runtime.raw.modelEmbed(this.handle));
    });
    return sequences.map((_, at) => data.slice(at * width, (at + 1) * width));
  }

  async attentions(input: ModelInput, given: AttentionsOptions = {}): Promise<ModelArray> {
    const { layer, head, headScales, ...inputs } = readOptions(given, attentionsNames, 'attentions');
    const [atLayer, atHead] = [placeOf(layer, 'layer'), placeOf(head, 'head')];
    const batch = await this.#read(input, inputs);
    const tokens = this.#positions(batch);
    const { numLayers, numHeads } = this.info;
    const wanted = [...(layer === undefined ? [numLayers] : []), ...(head === undefined ? [numHeads] : [])];
    const count = wanted.reduce((product, extent) => product * extent, 1);
    const { data } = this.#array([count, tokens, tokens], (operands, out) => {
      wire.modelAttentions(this.runtime.args, this.#inputs(operands, batch, headScales), atLayer, atHead, out);
      operands.run(() => this.runtime.raw.modelAttentions(this.handle));
    });
    return { shape: [...wanted, tokens, tokens], data };
  }

  async logits(input: ModelInput, given: LogitsOptions = {}): Promise<ModelArray> {
    const { positions = 'last', headScales, ...inputs } = readOptions(given, logitsNames, 'logits');
    const all = checkChoice(positions, ['last', 'all'], 'positions') === 'all';
    const batch = await this.#read(input, inputs);
    const { logits } = this.#pass(batch, ['logits'], headScales, all);
    return logits;
  }

  async forward<const R extends readonly ForwardOutput[]>(
    input: ModelInput,
    given: ForwardOptions<R>,
  ): Promise<ForwardResult<R>> {
    const { return: names, headScales, ...inputs } = readOptions(given, forwardNames, 'forward');
    const wanted = checkNames(names, outputNames, 'return');
    return this.#pass(await this.#read(input, inputs), wanted, headScales, true) as ForwardResult<R>;
  }

  #tokenizer(): Promise<TextTokenizer> {
    this.assertLive();
    return this.#parts.findTokenizer();
  }

  /** Positions of the hidden states. */
  #positions({ tokens, pixels }: Batch): number {
    const { imageSize, patchSize } = this.info;
    return pixels === undefined ? tokens : (imageSize / patchSize) ** 2 + 1;
  }

  /** The input of one pass. */
  async #read(input: unknown, { pair, tokenTypes, pixels }: Omit<InputOptions, 'headScales'>): Promise<Batch> {
    if (pixels !== undefined) {
      const expected = this.info.takesPixels ? 'a Float32Array' : 'none for a model of token ids';
      if (!(pixels instanceof Float32Array) || !this.info.takesPixels) {
        throw new MultiheadError('E_OPTION', { argument: 'pixels', expected, got: describe(pixels) });
      }
      return { ids: new Int32Array(), batch: 1, tokens: 0, pixels };
    }
    const sequence = await this.#sequence(input, 'input', pair === undefined ? undefined : checkText(pair, 'pair'));
    return tokenTypes === undefined ? sequence : { ...sequence, tokenTypes: checkIds(tokenTypes, 'tokenTypes') };
  }

  /** Text or token ids. */
  async #sequence(input: unknown, argument: string, pair?: string): Promise<Batch> {
    this.assertLive();
    if (typeof input !== 'string') {
      if (pair !== undefined) {
        throw new MultiheadError('E_OPTION', { argument: 'pair', expected: 'none beside token ids', got: 'a text' });
      }
      const ids = checkIds(input, argument);
      checkTokens(ids.length, argument);
      return { ids, batch: 1, tokens: ids.length as Count };
    }
    const options = pair === undefined ? {} : { text_pair: pair };
    const encoded = (await this.#tokenizer()).encode(input, { ...options, return_token_type_ids: true });
    checkTokens(encoded.ids.length, argument);
    const types = this.info.tokenTypes > 0 ? encoded.token_type_ids : undefined;
    return {
      ids: Int32Array.from(encoded.ids),
      batch: 1,
      tokens: encoded.ids.length as Count,
      ...(types && { tokenTypes: Int32Array.from(types) }),
    };
  }

  #inputs(operands: Operands, batch: Batch, headScales: unknown): wire.ModelInputs {
    return {
      ids: ints(operands, batch.ids, 'input'),
      batch: batch.batch,
      mask: batch.mask === undefined ? noSpan : bytes(this.runtime, operands, batch.mask),
      tokenTypes: batch.tokenTypes === undefined ? noSpan : ints(operands, batch.tokenTypes, 'tokenTypes'),
      pixels: batch.pixels === undefined ? noSpan : operands.span(batch.pixels, 'f32', 'pixels'),
      headScales: operands.optionalSpan(headScales, 'f32', 'headScales', this.info.numLayers * this.info.numHeads),
    };
  }

  /** Runs a call with one output, and returns the output in memory of JavaScript. */
  #array(shape: readonly number[], body: (operands: Operands, out: Operand<'f32'>) => void): ModelArray {
    this.assertLive();
    return call(this.runtime, (operands) => {
      const out = output(operands, shape);
      body(operands, out);
      return copied(this.runtime, out);
    });
  }

  #pass(batch: Batch, wanted: readonly ForwardOutput[], headScales: unknown, all: boolean): Record<ForwardOutput, ModelArray> {
    this.assertLive();
    const { info, runtime } = this;
    const tokens = this.#positions(batch);
    const logits: Record<ModelInfo['output'], readonly number[]> = {
      none: [1, 0],
      languageModel: [1, all ? tokens : 1, info.vocabSize],
      maskedLanguageModel: [1, tokens, info.vocabSize],
      classification: [1, info.numLabels],
      tokenClassification: [1, tokens, info.numLabels],
    };
    if (wanted.includes('logits') && info.output === 'none') {
      throw new MultiheadError('E_OPTION', { argument: 'logits', expected: 'a model with logits', got: `${info.modelType} without` });
    }
    const shapes: Record<ForwardOutput, readonly number[]> = {
      hiddenStates: [info.numLayers + 1, 1, tokens, info.embedDim],
      lastHiddenState: [1, tokens, info.embedDim],
      logits: logits[info.output],
      poolerOutput: [1, info.embedDim],
    };
    return call(runtime, (operands) => {
      const inputs = this.#inputs(operands, batch, headScales);
      const outputs = new Map(wanted.map((name) => [name, output(operands, shapes[name])]));
      const [hidden, last, scores, pooler] = outputNames.map((name) => outputs.get(name));
      wire.modelForward(runtime.args, inputs, hidden, last, scores, pooler);
      operands.run(() => runtime.raw.modelForward(this.handle));
      const one = (name: ForwardOutput, { shape, data }: ModelArray): ModelArray => {
        const rest = name === 'hiddenStates' ? [info.numLayers + 1, ...shape.slice(2)] : shape.slice(1);
        const isOne = name === 'logits' && info.output === 'languageModel' && !all;
        return { shape: isOne ? rest.slice(1) : rest, data };
      };
      return Object.fromEntries([...outputs].map(([name, operand]) => [name, one(name, copied(runtime, operand))])) as Record<
        ForwardOutput,
        ModelArray
      >;
    });
  }
}

/** A layer or head as the core takes it; −1 for all. */
const placeOf = (value: number | undefined, argument: string): Int64 =>
  value === undefined ? (-1 as Int64) : (checkCount(value, argument, 0) as Int64);

function checkTokens(count: number, argument: string): void {
  if (count === 0) throw new MultiheadError('E_OPTION', { argument, expected: 'one token or more', got: 'none' });
}

function checkText(value: unknown, argument: string): string {
  if (typeof value === 'string') return value;
  throw new MultiheadError('E_OPTION', { argument, expected: 'a text', got: describe(value) });
}

function padded(sequences: readonly Int32Array[]): Batch {
  const tokens = Math.max(...sequences.map(({ length }) => length)) as Count;
  const ids = new Int32Array(sequences.length * tokens);
  const mask = new Uint8Array(ids.length);
  sequences.forEach((sequence, at) => {
    ids.set(sequence, at * tokens);
    mask.fill(1, at * tokens, at * tokens + sequence.length);
  });
  return { ids, batch: sequences.length as Count, tokens, mask: mask.includes(0) ? mask : undefined };
}

function bytes({ heap }: Runtime, operands: Operands, values: Uint8Array): Span<'bool'> {
  const { address } = operands.temporary(values.length, 'mask');
  new Uint8Array(heap.buffer as ArrayBuffer, address, values.length).set(values);
  return { address, length: values.length as Uint32 };
}

/** Memory for an output until the end of the call. */
function output(operands: Operands, shape: readonly number[]): Operand<'f32'> {
  const { address } = operands.temporary(shape.reduce((product, extent) => product * extent, 4), 'outputs');
  return { address, dtype: 'f32', shape: shape as Extents };
}

function copied({ heap }: Runtime, { address, shape }: Operand<'f32'>): ModelArray {
  const length = shape.reduce((product: number, extent) => product * extent, 1);
  return { shape: [...shape], data: new Float32Array(heap.buffer as ArrayBuffer, address, length).slice() };
}
