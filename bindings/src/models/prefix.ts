// Model.prefix(): a generation whose keys and values others begin with.

import { dtypes } from '../generated/tables.js';
import { abortable, checkSignal } from '../runtime/abort.js';
import { disposedError, optionError } from '../runtime/errors.js';
import { checkChoice, checkFlag, type Names, namesOf, plain, readOptions } from '../runtime/options.js';
import { makeDisposable } from '../runtime/symbol_dispose.js';
import { describe, nameObject } from '../runtime/tensor.js';
import type { ChatInput, EncodeOptions, GenerateOptions, ModelInfo, Prefix, PrefixOptions } from '../types/models.js';
import type { Count } from '../types/wire.js';
import { checkChat, encodePrompt, isChat } from './chat.js';
import type { GenerationSettings, ModelEngine, SteppedGeneration } from './core/engine.js';
import { generationOf } from './core/generations.js';
import { checkIds, checkScales, checkTokens } from './inputs.js';
import type { ModelParts } from './parts.js';

const prefixNames = { cacheType: plain, headScales: plain, addSpecialTokens: plain, signal: plain } satisfies Names<PrefixOptions>;

/** The prefix of a call's options, as a function of its prompt. Throws `E_OPTION`; the function also `E_DISPOSED`. */
export let prefixOf: (options: GenerateOptions, engine: ModelEngine) => ((prompt: Int32Array) => GenerationSettings['prefix']) | undefined;

class OpenedPrefix implements Prefix {
  static {
    prefixOf = ({ prefix, ...others }, engine) => {
      if (prefix === undefined) return undefined;
      const isPrefix = typeof prefix === 'object' && prefix !== null && #generation in prefix;
      if (!isPrefix || prefix.#engine !== engine) throw optionError('prefix', "one that this model's prefix() has given", describe(prefix));
      for (const name of ['cacheType', 'headScales', 'edits'] as const) {
        if (others[name] !== undefined) throw optionError(name, 'none beside a prefix, which has its own', describe(others[name]));
      }
      return (prompt) => prefix.#at(prompt);
    };
  }

  readonly ids: readonly number[];
  readonly #engine: ModelEngine;
  readonly #generation: SteppedGeneration;
  #disposed = false;

  /** Defined on the prototype by the constructor: see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  constructor(engine: ModelEngine, generation: SteppedGeneration, ids: Int32Array) {
    makeDisposable(OpenedPrefix);
    this.ids = Object.freeze([...ids]);
    this.#engine = engine;
    this.#generation = generation;
    nameObject(this, 'a prefix');
  }

  get disposed(): boolean {
    return this.#disposed || this.#engine.disposed;
  }

  #at(prompt: Int32Array): GenerationSettings['prefix'] {
    if (this.disposed) throw disposedError('prefix', 'a prefix');
    const other = this.ids.findIndex((id, at) => prompt[at] !== id);
    // One token is left for the logits.
    const common = Math.min(other < 0 ? this.ids.length : other, prompt.length - 1);
    if (2 * (common + 1) > this.ids.length) return { of: this.#generation, common };
    throw optionError('prompt', 'the whole prompt, which begins as its prefix does', `one with ${common} of its ${this.ids.length} tokens`);
  }

  dispose(): void {
    this.#disposed = true;
    this.#generation.dispose();
  }
}

/** Copies the ids of a prompt, or gives what makes them of a text or of messages. Throws `E_OPTION`. */
export function readPrompt(
  parts: ModelParts,
  prompt: ChatInput,
  options: EncodeOptions,
  reader: ModelInfo,
  named = 'prompt',
): Int32Array | (() => Promise<Int32Array>) {
  const checked = (given: unknown, argument: string): Int32Array => {
    const ids = checkIds(given, argument, reader.vocabSize, 'a text, messages, an Int32Array or an array of token ids');
    checkTokens(ids.length, reader.maxTokens, named);
    return ids;
  };
  const text = isChat(prompt) ? checkChat(prompt, named) : prompt;
  if (typeof text !== 'string' && !isChat(text)) return checked(text, named);
  return async () => checked((await encodePrompt(parts, text, options, reader)).ids, 'tokenizer');
}

/** See {@link Model.prefix} of types/models.ts. */
export async function makePrefix(engine: ModelEngine, parts: ModelParts, prompt: ChatInput, given: PrefixOptions): Promise<Prefix> {
  const { info } = engine;
  const options = readOptions(given, prefixNames, 'prefix');
  const { signal } = options;
  checkSignal(signal);
  const cache = dtypes[checkChoice(options.cacheType ?? 'f32', namesOf(dtypes), 'cacheType')];
  const headScales = checkScales(options.headScales, info);
  if (options.addSpecialTokens !== undefined) checkFlag(options.addSpecialTokens, 'addSpecialTokens');
  if (info.output !== 'languageModel' || !info.causal || info.encoder !== undefined) {
    throw optionError('model', 'a causal language model without an encoder', info.modelType);
  }
  const asIds = readPrompt(parts, prompt, options, info);
  const ids = typeof asIds === 'function' ? await asIds() : asIds;
  await Promise.all([engine.load('generation'), cache !== dtypes.f32 && engine.load('caches')]);
  engine.assertLive();
  const sampling = { temperature: 0, topK: 0 as Count, topP: 1, repetitionPenalty: 1, seed: { low: 0, high: 0 } } as GenerationSettings['sampling'];
  const none = { edits: [], topTokens: 0, rules: [], end: 0 };
  const settings = { prompt: ids, capacity: ids.length as Count, cache, sampling, headScales, ...none };
  const generation = generationOf(engine, settings) as SteppedGeneration;
  try {
    await abortable(Promise.resolve(generation.fill()), signal, 'prefix');
  } catch (error) {
    generation.dispose();
    throw error;
  }
  return new OpenedPrefix(engine, generation, ids);
}
