// Model.generate(): options, texts and stops. An engine computes the tokens.

import { dtypes, earlyStoppings } from '../generated/tables.js';
import { abortable, abortedError, checkSignal } from '../runtime/abort.js';
import { optionError } from '../runtime/errors.js';
import { checkChoice, checkCount, checkFlag, checkNumber, type Names, namesOf, plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { ChatInput, GeneratedToken, GenerateOptions, LogitsProcessor, ModelInfo, TokenRules } from '../types/models.js';
import type { Count, Uint32, Whole64 } from '../types/wire.js';
import type { Awaitable, GenerationStep, ModelEngine, SteppedGeneration } from './core/engine.js';
import { generationOf } from './core/generations.js';
import { numbersOf } from './core/rules.js';
import { Turn } from './core/turns.js';
import { decoderInputOf } from './decoder_input.js';
import { checkIds, checkScales, checkTokens, entriesOf } from './inputs.js';
import type { ModelParts } from './parts.js';
import { prefixOf, readPrompt } from './prefix.js';
import { checkParts, readEdits } from './sites.js';
import type { Group } from './together.js';
import { StopTexts, TextStream } from './tokenizer.js';

const generateNames = {
  ...{ maxNewTokens: plain, temperature: plain, topK: plain, topP: plain, repetitionPenalty: plain },
  ...{ seed: plain, stop: plain, cacheType: plain, topTokens: plain, headScales: plain, edits: plain, addSpecialTokens: plain, signal: plain },
  ...{ forcedBos: plain, forcedEos: plain, suppress: plain, beginSuppress: plain, badWords: plain, decoderInput: plain, encoderEdits: plain },
  ...{ numBeams: plain, lengthPenalty: plain, earlyStopping: plain },
  ...{ noRepeatNgramSize: plain, encoderNoRepeatNgramSize: plain, minNewTokens: plain },
  ...{ logitsProcessor: plain, promptLookupNumTokens: plain, maxMatchingNgramSize: plain, prefix: plain },
} satisfies Names<GenerateOptions>;

/** Entries of `stop` that are read. */
const mostStops = 1024;

/** The longest session of the core. */
const mostTokens = 2 ** 31 - 1;

/** Any whole number, and Infinity: the model's end and the memory limit the tokens. Throws `E_OPTION`. */
function checkMost(value: unknown): number {
  if (value === Infinity || (Number.isInteger(value) && (value as number) >= 0)) return value as number;
  throw optionError('maxNewTokens', 'a whole number ≥ 0, or Infinity', describe(value));
}

/** Checks for a whole number from `least` to `most`. Throws `E_OPTION`. */
function checkUpTo(value: unknown, argument: string, least: number, most: number): number {
  const count = checkCount(value, argument, least);
  if (count <= most) return count;
  throw optionError(argument, `${least} to ${most}`, String(count));
}

/** Checks a number, and the float32 that the core gets. Throws `E_OPTION`. */
function checkWithin(value: unknown, argument: string, expected: string, allows: (value: number) => boolean): number {
  const number = checkNumber(value, argument, expected);
  if ([number, Math.fround(number)].every((each) => Number.isFinite(each) && allows(each))) return number;
  throw optionError(argument, expected, String(number));
}

/** The seed of the prompt at `at` of several. Throws `E_OPTION`. */
function checkSeed(value: unknown, at: number): Whole64 {
  if (!Number.isSafeInteger(value) || (value as number) < 0 || !Number.isSafeInteger((value as number) + at)) {
    throw optionError('seed', `a whole number from 0 to 2⁵³ − ${at + 1}`, describe(value));
  }
  const seed = (value as number) + at;
  return { low: (seed % 2 ** 32) as Uint32, high: Math.floor(seed / 2 ** 32) as Uint32 };
}

/** Divides `stop` into texts and ids. Throws `E_OPTION`. */
function checkStop(value: unknown, vocabSize: number): { texts: string[]; ids: number[] } {
  if (!Array.isArray(value)) throw optionError('stop', 'an array of texts and token ids', describe(value));
  if (value.length > mostStops) throw optionError('stop', `at most ${mostStops} entries`, String(value.length));
  const isId = (each: unknown): each is number => Number.isInteger(each) && (each as number) >= 0 && (each as number) < vocabSize;
  const isText = (each: unknown): each is string => typeof each === 'string' && each !== '';
  const all = Array.from(value as unknown[]);
  const wrong = all.findIndex((each) => !isId(each) && !isText(each));
  if (wrong < 0) return { texts: all.filter(isText), ids: all.filter(isId) };
  throw optionError('stop', `an array of texts and token ids, 0 to ${vocabSize - 1}`, `${describe(all[wrong])} at [${wrong}]`);
}

/** The options of a search with beams; undefined without. Throws `E_OPTION`. */
function readBeams({ lengthPenalty, earlyStopping, temperature = 0, topTokens = 0, ...options }: GenerateOptions, { generation }: ModelInfo) {
  const { numBeams, logitsProcessor, promptLookupNumTokens, prefix } = options;
  const isAlone = temperature !== 0 || topTokens !== 0 || logitsProcessor || promptLookupNumTokens || prefix;
  const count = checkUpTo(numBeams ?? (isAlone ? 1 : generation.numBeams), 'numBeams', 1, 64);
  const penalty = checkWithin(lengthPenalty ?? generation.lengthPenalty, 'lengthPenalty', 'a finite number', () => true);
  const stopping = earlyStopping ?? generation.earlyStopping;
  if (typeof stopping !== 'boolean' && stopping !== 'never') throw optionError('earlyStopping', "a boolean or 'never'", describe(stopping));
  if (count === 1) return undefined;
  if (temperature !== 0) throw optionError('temperature', '0 with beams', String(temperature));
  if (topTokens !== 0) throw optionError('topTokens', '0 with beams', String(topTokens));
  for (const [name, value] of Object.entries({ logitsProcessor, promptLookupNumTokens, prefix })) {
    if (value !== undefined) throw optionError(name, 'none with beams', describe(value));
  }
  const { estimate, firstFull, never } = earlyStoppings;
  return { count, lengthPenalty: penalty, earlyStopping: stopping === 'never' ? never : stopping ? firstFull : estimate };
}

/** What is looked up in the tokens so far; undefined if nothing. Throws `E_OPTION`. */
function readLookup({ promptLookupNumTokens, maxMatchingNgramSize }: GenerateOptions) {
  const most = checkUpTo(promptLookupNumTokens ?? 0, 'promptLookupNumTokens', 0, 64);
  const longest = checkCount(maxMatchingNgramSize ?? 2, 'maxMatchingNgramSize');
  return most === 0 ? undefined : { most, longest };
}

/** The rules of the model, with those of the options in their place. Throws `E_OPTION`. */
function readRules({ rules, vocabSize }: ModelInfo, given: GenerateOptions): TokenRules {
  const forced = (name: 'forcedBos' | 'forcedEos'): number | undefined => {
    const value = given[name];
    return value === undefined ? rules[name] : value === null ? undefined : checkIds([value], name, vocabSize)[0];
  };
  const ids = (name: 'suppress' | 'beginSuppress'): readonly number[] =>
    given[name] === undefined ? rules[name] : [...checkIds(given[name], name, vocabSize)];
  const words = given.badWords === undefined ? rules.badWords : entriesOfList(given.badWords, 'badWords');
  const badWords = words.map((word, at) => {
    const tokens = [...checkIds(word, `badWords[${at}]`, vocabSize)];
    if (tokens.length > 0) return tokens;
    throw optionError(`badWords[${at}]`, 'one token id or more', 'none');
  });
  const count = (name: 'noRepeatNgramSize' | 'encoderNoRepeatNgramSize' | 'minNewTokens'): number => checkCount(given[name] ?? rules[name], name, 0);
  return {
    ...{ forcedBos: forced('forcedBos'), forcedEos: forced('forcedEos'), suppress: ids('suppress'), beginSuppress: ids('beginSuppress'), badWords },
    ...{ noRepeatNgramSize: count('noRepeatNgramSize'), encoderNoRepeatNgramSize: count('encoderNoRepeatNgramSize') },
    ...{ minNewTokens: count('minNewTokens'), minLength: given.minNewTokens === undefined ? rules.minLength : 0 },
  };
}

function entriesOfList(value: unknown, argument: string): unknown[] {
  if (Array.isArray(value)) return entriesOf(value, argument);
  throw optionError(argument, 'an array of arrays of token ids', describe(value));
}

/** See {@link Model.generate} of types/models.ts. Throws for wrong options at once. `group`: of several prompts, of which this is the one at `at`. */
export function generate(
  engine: ModelEngine,
  parts: ModelParts,
  info: ModelInfo,
  prompt: ChatInput,
  given: GenerateOptions,
  { group, at = 0 }: { readonly group?: Group; readonly at?: number } = {},
): AsyncGenerator<GeneratedToken, void, undefined> {
  const options = readOptions(given, generateNames, 'generate');
  const { signal } = options;
  checkSignal(signal);
  const stop = checkStop(options.stop ?? [], info.vocabSize);
  const named = group === undefined ? 'prompt' : `prompts[${at}]`;
  const cache = dtypes[checkChoice(options.cacheType ?? 'f32', namesOf(dtypes), 'cacheType')];
  const topTokens = checkUpTo(options.topTokens ?? 0, 'topTokens', 0, 100);
  const asked = options.maxNewTokens === undefined ? undefined : checkMost(options.maxNewTokens);
  const headScales = checkScales(options.headScales, info);
  const edits = readEdits(options.edits, engine);
  checkParts(edits, info, undefined);
  const rules = readRules(info, options);
  const search = readBeams(options, info);
  const lookup = readLookup(options);
  const { logitsProcessor } = options;
  if (logitsProcessor !== undefined && typeof logitsProcessor !== 'function')
    throw optionError('logitsProcessor', 'a function', describe(logitsProcessor));
  const prefix = prefixOf(options, engine);
  const { encoder, generation: defaults } = info;
  for (const name of ['decoderInput', 'encoderEdits'] as const) {
    if (encoder === undefined && options[name] !== undefined) throw optionError(name, `none for ${info.modelType}`, describe(options[name]));
  }
  const sourceEdits = engine.encoder && readEdits(options.encoderEdits, engine.encoder, 'encoderEdits');
  // The tokens that the prompt becomes: of the encoder, if there is one.
  const reader = encoder ?? info;
  if (options.addSpecialTokens !== undefined) checkFlag(options.addSpecialTokens, 'addSpecialTokens');
  const sampling = {
    temperature: checkWithin(options.temperature ?? 0, 'temperature', 'a finite number from 0 on', (value) => value >= 0),
    topK: checkCount(options.topK ?? 0, 'topK', 0),
    topP: checkWithin(options.topP ?? 1, 'topP', 'more than 0, at most 1', (value) => value > 0 && value <= 1),
    repetitionPenalty: checkWithin(
      options.repetitionPenalty ?? defaults.repetitionPenalty,
      'repetitionPenalty',
      'a finite number above 0',
      (value) => value > 0,
    ),
    seed: checkSeed(options.seed ?? 0, at),
  };
  if (info.output !== 'languageModel' || !info.causal) throw optionError('model', 'a causal language model', info.modelType);
  const asIds = readPrompt(parts, prompt, options, reader, named);
  const decoderIds = encoder && decoderInputOf(options.decoderInput, info);
  return steps();

  async function* steps(): AsyncGenerator<GeneratedToken, void, undefined> {
    const needsTokenizer = typeof asIds === 'function' || stop.texts.length > 0;
    const tokenizer = needsTokenizer ? await parts.findTokenizer() : await parts.findTokenizer().catch(() => undefined);
    const read = typeof asIds === 'function' ? await asIds() : asIds;
    const source = encoder && read;
    if (encoder !== undefined && sourceEdits !== undefined) checkParts(sourceEdits, encoder, { tokens: read.length }, 'encoderEdits');
    const ids = decoderIds === undefined ? read : await decoderIds(tokenizer);
    checkTokens(ids.length, info.maxTokens, 'decoderInput');
    // The last token needs no place in the session.
    const ofFolder = encoder && (defaults.maxNewTokens || (defaults.maxLength && Math.max(1, defaults.maxLength - ids.length)));
    const most = Math.min(asked ?? (ofFolder || 128), info.maxTokens > 0 ? info.maxTokens - ids.length + 1 : Infinity);
    if (most === 0) return;

    const ends = new Set([...info.endIds, ...stop.ids]);
    const stream = tokenizer && new TextStream(tokenizer);
    const stops = new StopTexts(stop.texts);
    const capacity = Math.min(ids.length + most - 1, mostTokens) as Count;
    const end = Math.min(ids.length + most, mostTokens);
    const numbers = numbersOf(rules, ends, rules.encoderNoRepeatNgramSize > 0 ? read : []);
    const settings = { prompt: ids, capacity, cache, sampling, headScales, edits, topTokens, rules: numbers, end, source, sourceEdits };
    const beams = search && { ...search, stops: Int32Array.from(ends), most: end - ids.length };
    const changes = edits.length > 0 || (sourceEdits?.length ?? 0) > 0;
    const needed = [search && 'beams', cache !== dtypes.f32 && 'caches', changes && 'inspection'] as const;
    await Promise.all(['generation' as const, ...needed].map((part) => part && engine.load(part)));
    engine.assertLive();
    const alone = generationOf(engine, { ...settings, beams, lookup, prefix: prefix?.(ids) });
    const generation = group?.join(alone) ?? alone;
    const all = [...ids];
    const waited = <T>(value: Awaitable<T>): Awaitable<T> => (value instanceof Promise ? abortable(value, signal, 'generate') : value);
    // There are no beams with a processor.
    const processed = async (process: LogitsProcessor, stepped: SteppedGeneration): Promise<GenerationStep> => {
      const logits = await waited(stepped.logits());
      const got: unknown = process(Int32Array.from(all), logits);
      if (got !== undefined && got !== logits)
        throw optionError('logitsProcessor', 'a function that changes the logits and returns nothing', describe(got));
      // It may have disposed the model.
      engine.assertLive();
      return waited(stepped.choose(logits));
    };
    try {
      const turn = new Turn();
      for (let step = 1; ; step += 1) {
        if (signal?.aborted) throw abortedError(signal, 'generate');
        engine.assertLive();
        const next = logitsProcessor === undefined ? waited(generation.next()) : processed(logitsProcessor, generation as SteppedGeneration);
        const { token, topTokens: top, accepted } = next instanceof Promise ? await next : next;
        all.push(token);
        const isEnd = ends.has(token);
        const piece = isEnd || stream === undefined ? '' : stream.add(token);
        const held = stream !== undefined && (isEnd || step === most) ? stream.rest() : '';
        const { text, ends: stopped } = stops.add(piece + held);
        const finishReason = isEnd || stopped ? 'stop' : step === most ? 'length' : undefined;
        yield { token, text: finishReason && !stopped ? text + stops.rest() : text, topTokens: top, accepted, finishReason };
        if (finishReason) return;
        // Workers leave this thread its turns.
        if (engine.workers === 0 && turn.isLong) await turn.end();
      }
    } finally {
      generation.dispose();
    }
  }
}
