// Model.embed(): texts to token ids, and these in batches to vectors.

import { poolings } from '../generated/tables.js';
import { abortable, abortedError, checkSignal } from '../runtime/abort.js';
import { type MultiheadError, optionError } from '../runtime/errors.js';
import { checkCallback, checkChoice, checkFlag, type Names, namesOf, plain, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { EmbedOptions, ModelInfo, ModelInput, TextTokenizer } from '../types/models.js';
import type { Count, Extents } from '../types/wire.js';
import type { Batch, ModelEngine } from './core/engine.js';
import { Turn } from './core/turns.js';
import { checkIds, checkScales, checkTokens, entriesOf, textOrIds } from './inputs.js';
import type { ModelParts } from './parts.js';

const embedNames = {
  ...{ pooling: plain, normalize: plain, truncate: plain, prompt: plain, promptName: plain },
  ...{ headScales: plain, signal: plain, onProgress: plain },
} satisfies Names<EmbedOptions>;

/** Most tokens of a batch, padding included, unless it is one longer text. */
const mostBatchTokens = 4096;

const refuse = (argument: string, expected: string, got: unknown): MultiheadError => optionError(argument, expected, describe(got));

/** The text that stands before every text. Throws `E_OPTION`. */
function promptOf({ prompts }: ModelParts, { poolsPrompt }: ModelInfo, text: unknown, name: unknown): string {
  if (text !== undefined && typeof text !== 'string') throw refuse('prompt', 'a text', text);
  if (text !== undefined && name !== undefined) throw refuse('promptName', 'none beside prompt', name);
  const chosen: unknown = name ?? prompts.get('default_prompt_name') ?? undefined;
  let prompt: unknown = text ?? '';
  if (text === undefined && chosen !== undefined) {
    prompt = typeof chosen === 'string' ? prompts.get(`prompts.${chosen}`) : undefined;
    const known = [...prompts.keys()].flatMap((path) => (path.startsWith('prompts.') ? [path.slice(8)] : []));
    if (typeof prompt !== 'string')
      throw refuse('promptName', known.length > 0 ? `one of ${known.join(', ')}` : 'none: the folder has no prompts', chosen);
  }
  if (prompt !== '' && !poolsPrompt) throw refuse('prompt', 'none: include_prompt is false in the pooling of the folder', prompt);
  return prompt as string;
}

/** Leaves out the end of a text, but not the special tokens around it. */
function shortened(ids: Int32Array, most: number, text: string, tokenizer: TextTokenizer): Int32Array {
  const bare = tokenizer.encode(text, { add_special_tokens: false }).ids;
  const special = Math.max(0, ids.length - bare.length);
  const starts = Array.from({ length: special + 1 }, (_, at) => at);
  const before = starts.find((at) => bare.every((id, i) => id === ids[at + i])) ?? 0;
  const after = special - before;
  const kept = ids.slice(0, Math.max(0, most - after));
  return Int32Array.from([...kept, ...ids.slice(ids.length - after)].slice(-most));
}

/** SigLIP reads a vector after the last of maxTokens tokens, padding among them. Gives the id of padding; undefined for other models. */
async function paddingOf({ padding, findTokenizer }: ModelParts, { modelType }: ModelInfo): Promise<number | undefined> {
  if (!modelType.startsWith('siglip')) return undefined;
  const tokenizer = padding.token === undefined ? undefined : await findTokenizer().catch(() => undefined);
  const ids = tokenizer?.encode(padding.token as string, { add_special_tokens: false }).ids ?? [];
  return ids.length === 1 ? ids[0] : padding.id;
}

/** Indices of texts of similar lengths, the longest first. */
function batchesOf(sequences: readonly Int32Array[]): number[][] {
  const length = (at: number): number => (sequences[at] as Int32Array).length;
  const order = [...sequences.keys()].sort((a, b) => length(b) - length(a));
  const batches: number[][] = [];
  const batch: number[] = [];
  for (const at of order) {
    const longest = length(batch[0] ?? at);
    if (batch.length > 0 && ((batch.length + 1) * longest > mostBatchTokens || length(at) < 0.75 * longest)) batches.push(batch.splice(0));
    batch.push(at);
  }
  return [...batches, batch];
}

function padded(sequences: readonly Int32Array[]): Batch {
  const tokens = (sequences[0] as Int32Array).length as Count;
  const ids = new Int32Array(sequences.length * tokens);
  const mask = new Uint8Array(ids.length);
  sequences.forEach((sequence, at) => {
    ids.set(sequence, at * tokens);
    mask.fill(1, at * tokens, at * tokens + sequence.length);
  });
  return { ids, batch: sequences.length as Count, tokens, mask: mask.includes(0) ? mask : undefined };
}

/** See {@link Model.embed} of types/models.ts. `isOne`: there is one input, which is not in a list of the caller. */
export async function embed(
  engine: ModelEngine,
  parts: ModelParts,
  inputs: readonly ModelInput[],
  isOne: boolean,
  given: EmbedOptions,
): Promise<Float32Array<ArrayBuffer>[]> {
  const { info } = engine;
  const options = readOptions(given, embedNames, 'embed');
  const { signal, onProgress } = options;
  checkSignal(signal);
  checkCallback(onProgress, 'onProgress');
  const scales = checkScales(options.headScales, info);
  const pooling = poolings[checkChoice(options.pooling ?? info.pooling, namesOf(poolings), 'pooling')];
  const normalize = options.normalize === undefined || checkFlag(options.normalize, 'normalize');
  const truncate = options.truncate === undefined ? undefined : checkFlag(options.truncate, 'truncate');
  const prompt = promptOf(parts, info, options.prompt, options.promptName);
  const limit = truncate === false ? 0 : info.maxSeqLength || (truncate === true ? info.maxTokens : 0);
  const most = limit || Infinity;
  const nameOf = (at: number): string => (isOne ? 'inputs' : `inputs[${at}]`);
  // Copied before the first await: the caller may change its arrays after the call.
  const checked = entriesOf(inputs, 'inputs').map((input, at) =>
    typeof input === 'string' ? input : checkIds(input, nameOf(at), info.vocabSize, textOrIds),
  );
  if (checked.length === 0) return [];
  const tokenizer = checked.some((input) => typeof input === 'string') ? await parts.findTokenizer() : undefined;
  const padding = await paddingOf(parts, info);
  const turn = new Turn();
  const rest = async (): Promise<void> => {
    if (turn.isLong) await turn.end();
    if (signal?.aborted) throw abortedError(signal, 'embed');
  };
  const sequences: Int32Array[] = [];
  for (const [at, input] of checked.entries()) {
    let ids: Int32Array;
    if (typeof input === 'string') {
      const text = prompt + input;
      const encoded = parts.lowerCase ? text.toLowerCase() : text;
      const all = (tokenizer as TextTokenizer).encode(encoded).ids;
      ids = checkIds(all, 'tokenizer', info.vocabSize);
      if (ids.length > most) ids = shortened(ids, most, encoded, tokenizer as TextTokenizer);
    } else ids = input.length > most ? input.slice(0, most) : input;
    checkTokens(ids.length, info.maxTokens, nameOf(at));
    if (padding !== undefined) {
      const padded = new Int32Array(info.maxTokens).fill(padding);
      padded.set(ids);
      ids = padded;
    }
    sequences.push(ids);
    await rest();
  }

  const width = info.vectorDim;
  const vectors: Float32Array<ArrayBuffer>[] = new Array(checked.length);
  let done = 0;
  for (const places of batchesOf(sequences)) {
    const batch = padded(places.map((at) => sequences[at] as Int32Array));
    engine.assertLive();
    const outputs = [[batch.batch, width] as readonly number[] as Extents];
    const run = engine.run({ batch, headScales: scales, what: { kind: 'embed', pooling, normalize }, outputs });
    const [data] = await abortable(Promise.resolve(run), signal, 'embed');
    places.forEach((at, row) => (vectors[at] = (data as Float32Array<ArrayBuffer>).slice(row * width, (row + 1) * width)));
    done += places.length;
    onProgress?.(done, checked.length);
    await rest();
  }
  return vectors;
}
