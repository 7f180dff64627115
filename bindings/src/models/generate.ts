// Model.generate(): a session with a KV cache, and a sampler, both in the core.

import { dtypes } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { abortedError, checkSignal } from '../runtime/abort.js';
import { MultiheadError } from '../runtime/errors.js';
import { bytesPerElement, type Block } from '../runtime/memory.js';
import { call, checkStatus, type Runtime } from '../runtime/operands.js';
import { checkChoice, checkCount, checkNumber, type Names, namesOf, plain, readFlat } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { GeneratedToken, GenerateOptions, LikelyToken, ModelInfo, ModelInput, TextTokenizer } from '../types/models.js';
import type { Count, Int32, Uint32, Whole64 } from '../types/wire.js';
import { checkIds } from './inputs.js';
import { StopTexts, TextStream } from './tokenizer.js';

const generateNames = {
  ...{ maxNewTokens: plain, temperature: plain, topK: plain, topP: plain, repetitionPenalty: plain },
  ...{ seed: plain, stop: plain, cache: plain, likeliest: plain, signal: plain },
} satisfies Names<GenerateOptions>;

/** Entries of `stop` that are read. */
const mostStops = 1024;

/** Longest time that a generation keeps the thread, in milliseconds: a frame of a display. */
const mostBusy = 16;

/** The largest value of `likeliest`. */
const mostLikeliest = 100;

/** The largest logits with their shares of the softmax, the largest first, of several equal ones the first. */
function likeliestOf(logits: Float32Array, count: number): LikelyToken[] {
  if (count === 0) return [];
  const found: number[] = [];
  let least = -Infinity;
  for (let id = 0; id < logits.length; id += 1) {
    const value = logits[id] as number;
    if (found.length === count && !(value > least)) continue;
    let at = found.length;
    while (at > 0 && (logits[found[at - 1] as number] as number) < value) at -= 1;
    found.splice(at, 0, id);
    if (found.length > count) found.pop();
    least = logits[found.at(-1) as number] as number;
  }
  const top = logits[found[0] as number] as number;
  let sum = 0;
  for (const value of logits) sum += Math.exp(value - top);
  return found.map((token) => ({ token, probability: Math.exp((logits[token] as number) - top) / sum }));
}

function checkLikeliest(value: unknown): number {
  const count = checkCount(value, 'likeliest', 0);
  if (count <= mostLikeliest) return count;
  throw new MultiheadError('E_OPTION', { argument: 'likeliest', expected: `0 to ${mostLikeliest}`, got: String(count) });
}

/** Ends the current task, so that others run: events, timers, and messages. */
function nextTask(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(undefined);
  });
}

function checkSeed(value: unknown): Whole64 {
  if (!Number.isSafeInteger(value) || (value as number) < 0) {
    throw new MultiheadError('E_OPTION', { argument: 'seed', expected: 'a whole number from 0 to 2⁵³ − 1', got: describe(value) });
  }
  const seed = value as number;
  return { low: (seed % 2 ** 32) as Uint32, high: Math.floor(seed / 2 ** 32) as Uint32 };
}

/** Divides `stop` into texts and ids. Throws `E_OPTION`. */
function checkStop(value: unknown): { texts: string[]; ids: number[] } {
  const all: unknown = Array.isArray(value) ? value.slice(0, mostStops) : (value ?? []);
  const isStop = (each: unknown): boolean => Number.isInteger(each) || (typeof each === 'string' && each !== '');
  if (!Array.isArray(all) || !all.every(isStop)) {
    const wrong: unknown = Array.isArray(all) ? all.find((each) => !isStop(each)) : all;
    throw new MultiheadError('E_OPTION', { argument: 'stop', expected: 'an array of texts and token ids', got: describe(wrong) });
  }
  if ((value as unknown[] | undefined)?.length !== all.length && value !== undefined) {
    throw new MultiheadError('E_OPTION', { argument: 'stop', expected: `at most ${mostStops} entries`, got: 'more' });
  }
  return {
    texts: all.filter((each): each is string => typeof each === 'string'),
    ids: all.filter((each): each is number => typeof each === 'number'),
  };
}

/** What generate() needs of a model. */
interface Generating {
  readonly info: ModelInfo;
  /** Throws `E_DISPOSED`. */
  readonly handle: Int32;
  assertLive(): void;
}

/** See {@link Model.generate} of types/models.ts. Options are checked at the first step. */
export async function* generate(
  runtime: Runtime,
  model: Generating,
  findTokenizer: () => Promise<TextTokenizer>,
  prompt: ModelInput,
  given: GenerateOptions,
): AsyncGenerator<GeneratedToken, void, undefined> {
  const { raw, args, heap } = runtime;
  const { info } = model;
  const options = readFlat(given, generateNames, 'generate');
  const { signal } = options;
  checkSignal(signal);
  const stop = checkStop(options.stop);
  const cacheType = dtypes[checkChoice(options.cache ?? 'f32', namesOf(dtypes), 'cache')];
  const likely = checkLikeliest(options.likeliest ?? 0);
  const asked = options.maxNewTokens === undefined ? undefined : checkCount(options.maxNewTokens, 'maxNewTokens', 0);
  const sampling = {
    temperature: checkNumber(options.temperature ?? 0, 'temperature'),
    topK: checkCount(options.topK ?? 0, 'topK', 0),
    topP: checkNumber(options.topP ?? 1, 'topP'),
    repetitionPenalty: checkNumber(options.repetitionPenalty ?? 1, 'repetitionPenalty'),
    seed: checkSeed(options.seed ?? 0),
  };
  if (info.output !== 'languageModel' || !info.causal) {
    throw new MultiheadError('E_OPTION', { argument: 'model', expected: 'a causal language model', got: info.modelType });
  }
  const writesText = typeof prompt === 'string' || stop.texts.length > 0;
  const tokenizer = writesText ? await findTokenizer() : undefined;
  const ids = typeof prompt === 'string' ? Int32Array.from((tokenizer as TextTokenizer).encode(prompt).ids) : checkIds(prompt, 'prompt');
  const room = info.maxTokens > 0 ? info.maxTokens - ids.length : Infinity;
  if (ids.length === 0 || room < 0) {
    const expected = info.maxTokens > 0 ? `1 to ${info.maxTokens} tokens` : 'one token or more';
    throw new MultiheadError('E_OPTION', { argument: 'prompt', expected, got: `${ids.length} tokens` });
  }
  const most = Math.min(asked ?? 128, room);
  if (most === 0) return;

  const ends = new Set([...info.endIds, ...stop.ids]);
  const stream = tokenizer && new TextStream(tokenizer);
  const stops = new StopTexts(stop.texts);
  const all = new Int32Array(ids.length + most);
  all.set(ids);
  let count = ids.length;

  const session = call(runtime, (operands) => {
    wire.session(args, all.length as Count, cacheType);
    return operands.make(() => raw.sessionCreate(model.handle));
  });
  const sessionBytes = raw.sessionBytes(session);
  heap.count(sessionBytes);
  let sampler: Int32 | undefined;
  let memory: { readonly ids: Block; readonly logits: Block } | undefined;
  try {
    sampler = call(runtime, (operands) => {
      wire.sampler(args, sampling);
      return operands.make(() => raw.samplerCreate());
    });
    // Kept for all steps, so that a step allocates nothing.
    const idBlock = heap.allocate(all.byteLength, 'ids');
    memory = { ids: idBlock, logits: { address: 0, bytes: 0 } };
    memory = { ids: idBlock, logits: heap.allocate(info.vocabSize * bytesPerElement('f32'), 'logits') };
    heap.view('i32', idBlock.address, ids.length).set(ids);
    const logits = { address: memory.logits.address, dtype: 'f32', shape: [info.vocabSize as Count] } as const;
    let turn = performance.now();
    for (let begin = 0, step = 0; step < most; step += 1) {
      if (signal?.aborted) throw abortedError(signal, 'generate');
      model.assertLive();
      wire.sessionAppend(args, { address: (idBlock.address + 4 * begin) as Uint32, length: (count - begin) as Uint32 }, logits);
      args.close();
      checkStatus(runtime, raw.sessionAppend(session));
      const likeliest = likeliestOf(heap.view('f32', logits.address, likely && info.vocabSize), likely);
      begin = count;
      wire.choose(args, logits, { address: idBlock.address, length: count as Uint32 });
      args.close();
      checkStatus(runtime, raw.samplerChoose(sampler));
      const { token } = wire.readChosenToken(args.results());
      heap.view('i32', idBlock.address, all.length)[count] = token;
      count += 1;
      const isEnd = ends.has(token);
      const piece = isEnd || stream === undefined ? '' : stream.add(token);
      const held = stream !== undefined && (isEnd || step + 1 === most) ? stream.rest() : '';
      const { text, ends: stopped } = stops.add(piece + held);
      const isLast = isEnd || stopped || step + 1 === most;
      yield { token, text: isLast && !stopped ? text + stops.rest() : text, likeliest };
      if (isLast) return;
      if (performance.now() - turn > mostBusy) {
        await nextTask();
        turn = performance.now();
      }
    }
  } finally {
    heap.count(-sessionBytes);
    if (!raw.dead) {
      if (sampler !== undefined) raw.samplerRelease(sampler);
      raw.sessionRelease(session);
    }
    if (memory !== undefined) for (const block of Object.values(memory)) heap.release(block);
  }
}
