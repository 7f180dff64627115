// The laboratory of a language model, in its worker: what each layer predicts, experiments with two texts, and changes of the
// model while it writes.

import type { Capture, Edit, Metric, Model, ModelArray, SessionEdit } from 'multihead/models';
import type { Matrix } from '../attention/matrix.js';
import { counted, messageOf, quoted } from '../base/format.js';
import type { Change, Lens, LikelyText, Pair, PatchKind, Patched, Two } from './messages.js';

export interface Reader {
  /** On a GPU or on this thread; a GPU may be lost. */
  model(): Model;
  /** On this thread. */
  forGradients(): Promise<Model>;
  /** The first tokens of a text. */
  read(text: string): Promise<{ readonly ids: readonly number[]; readonly labels: readonly string[]; readonly found: number }>;
  label(id: number): Promise<string>;
  readonly readsText: boolean;
}

const mostLikely = 5;

export class Laboratory {
  readonly #reader: Reader;
  #pair: Pair | undefined;

  constructor(reader: Reader) {
    this.#reader = reader;
  }

  get #model(): Model {
    return this.#reader.model();
  }

  get #begun(): Pair {
    if (!this.#pair) throw new Error('No experiment was begun.');
    return this.#pair;
  }

  async lens(text: string): Promise<Lens> {
    const { ids, labels } = await this.#read(text);
    return { labels, likeliest: await this.#likeliest(ids), logProbs: ids.length > 1 ? [...(await this.#model.logProbs(ids)).values] : [] };
  }

  async pair(texts: Two<string>, words: Two<string>): Promise<Pair> {
    this.#pair = undefined;
    const [clean, corrupt] = [await this.#read(texts[0]), await this.#read(texts[1])];
    const long = [clean, corrupt].find(({ ids: read, found }) => found > read.length);
    if (long) throw new Error(`A sentence has ${long.found} tokens; the experiment takes ${long.ids.length}.`);
    const ids = [clean.ids, corrupt.ids] as const;
    if (clean.ids.length !== corrupt.ids.length) {
      const said = [clean, corrupt].map(({ labels: each }) => `${each.length} (${each.join(' | ')})`);
      throw new Error(`Each token is compared with the one in its place, so both sentences need as many: ${said.join(' and ')}.`);
    }
    if (clean.ids.every((id, at) => id === corrupt.ids[at])) throw new Error('Both sentences are the same. Change a word of one.');
    const tokens = await this.#tokens(words, ids);
    const metric = { token: tokens[0], against: tokens[1] };
    const { metrics, attribution } = await this.#attribution(ids, metric);
    const named = await Promise.all(tokens.map((id) => this.#reader.label(id)));
    this.#pair = { ids, labels: [clean.labels, corrupt.labels], tokens, words: named as [string, string], metrics, attribution };
    return this.#pair;
  }

  async patch(kind: PatchKind, signal: AbortSignal, onValues: (patched: Patched) => void): Promise<Matrix> {
    const { ids, tokens } = this.#begun;
    const metric = { token: tokens[0], against: tokens[1] };
    const onProgress = (done: number, values: Matrix): void => onValues({ patched: kind, known: Math.round(done * values.data.length), values });
    return (await this.#model.patch(...ids, metric, { by: kind === 'heads' ? 'head' : 'position', signal, onProgress })).values;
  }

  async changed(kind: PatchKind, layer: number, part: number): Promise<Two<LikelyText[]>> {
    const { ids } = this.#begun;
    const site = kind === 'heads' ? 'z' : 'resid_pre';
    const value = await this.#value(ids[1], { site, layer });
    const edit = { site, layer, [kind === 'heads' ? 'heads' : 'tokens']: [part], replace: value } as Edit;
    return [await this.#next(ids[0]), await this.#next(ids[0], [edit])];
  }

  async editsFor(change: Change): Promise<readonly SessionEdit[]> {
    const { layer } = change;
    if (change.kind === 'scale') return [{ site: 'z', layer, heads: [change.head], scale: change.factor }];
    if (change.kind === 'swap') {
      const { shape, data } = await this.#value((await this.#read(change.text)).ids, { site: 'z', layer, heads: [change.head] });
      return [{ site: 'z', layer, heads: [change.head], set: data.slice(-shape.at(-1)!) }];
    }
    const [toward, away] = [await this.#mean(change.texts[0], layer), await this.#mean(change.texts[1], layer)];
    return [{ site: 'resid_pre', layer, add: Float32Array.from(toward, (value, at) => change.factor * (value - away[at]!)) }];
  }

  async #read(text: string): ReturnType<Reader['read']> {
    const read = await this.#reader.read(text);
    if (read.ids.length === 0) throw new Error('There is no text. The experiment needs two sentences, one a line.');
    return read;
  }

  async #value(ids: readonly number[], capture: Capture): Promise<ModelArray> {
    return (await this.#model.run(ids, { capture: [capture], logits: 'none' })).captures[0]!;
  }

  /** The mean over a text's tokens of the residual stream before a layer. */
  async #mean(text: string, layer: number): Promise<Float32Array> {
    const { shape, data } = await this.#value((await this.#read(text)).ids, { site: 'resid_pre', layer });
    const [count, width] = shape as [number, number];
    const sumOf = (col: number): number => data.reduce((sum, value, at) => (at % width === col ? sum + value : sum), 0);
    return Float32Array.from({ length: width }, (_, col) => sumOf(col) / count);
  }

  /** The likeliest next tokens by these layers, of each after each token; the last ones are the model's own. */
  async #likeliest(ids: readonly number[], layers?: readonly number[], edits?: readonly Edit[]): Promise<(LikelyText & { id: number })[][]> {
    const top = Math.min(mostLikely, this.#model.info.vocabSize);
    const found = await this.#model.lens(ids, { layers, top, edits });
    const names = new Map(await Promise.all([...new Set(found.ids)].map(async (id) => [id, await this.#reader.label(id)] as const)));
    const all = Array.from(found.ids, (id, at) => ({ id, label: names.get(id)!, share: found.probabilities[at]! }));
    return Array.from({ length: all.length / top }, (_, cell) => all.slice(cell * top, (cell + 1) * top));
  }

  async #next(ids: readonly number[], edits?: readonly Edit[]): Promise<(LikelyText & { id: number })[]> {
    return (await this.#likeliest(ids, [this.#model.info.numLayers], edits)).at(-1)!;
  }

  async #attribution([clean, corrupt]: Pair['ids'], metric: Metric): Promise<Pick<Pair, 'metrics' | 'attribution'>> {
    try {
      const found = await (await this.#reader.forGradients()).attributionPatch(clean, corrupt, metric);
      return { metrics: [found.clean, found.corrupt], attribution: found.values };
    } catch (error) {
      // Some models have no gradients, and all have metrics.
      return { metrics: [await this.#model.measure(clean, metric), await this.#model.measure(corrupt, metric)], attribution: messageOf(error) };
    }
  }

  /** The tokens of two words. An empty one is the likeliest next word of its text that is not the other one. */
  async #tokens(words: Two<string>, ids: Pair['ids']): Promise<[number, number]> {
    const given = await Promise.all(words.map(async (word) => (word.trim() === '' ? undefined : this.#token(word))));
    const [one, two] = [await this.#next(ids[0]), await this.#next(ids[1])];
    const first = given[0] ?? one.find(({ id }) => id !== given[1])!.id;
    const second = given[1] ?? [two[0]!, ...one].find(({ id }) => id !== first)!.id;
    if (first === second) throw new Error('Choose two different words to compare.');
    return [first, second];
  }

  /** The token of a word; "·" stands for a space, and a word without one is first looked for after a space. */
  async #token(word: string): Promise<number> {
    const { vocabSize } = this.#model.info;
    if (!this.#reader.readsText) {
      const id = /^\s*\d{1,9}\s*$/.test(word) ? Number(word) : vocabSize;
      if (id >= vocabSize) throw new Error(`Without tokenizer.json a word is a number of a token, 0 to ${vocabSize - 1}.`);
      return id;
    }
    const written = word.replaceAll('·', ' ').replaceAll('⏎', '\n');
    for (const text of /^\s/.test(written) ? [written] : [` ${written}`, written]) {
      const { ids } = await this.#model.encode(text, { addSpecialTokens: false });
      if (ids.length === 1) return ids[0]!;
    }
    const { tokens } = await this.#model.encode(written, { addSpecialTokens: false });
    throw new Error(`${quoted(word, 40)} is ${counted(tokens.length, 'token')} of this model: choose a word that is a single one.`);
  }
}
