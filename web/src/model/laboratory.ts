// The laboratory of a language model, in its worker: what each layer predicts, experiments with two texts, and changes of the
// model while it writes.

import type { Capture, Edit, Metric, Model, ModelArray, SessionEdit } from 'multihead/models';
import type { Matrix } from '../attention/matrix.js';
import { counted, messageOf, quoted } from '../base/format.js';
import type { BeforeAfter, Change, Lens, LikelyText, Pair, PatchKind, Patched } from './messages.js';

/** What the laboratory needs of the session. */
export interface Reader {
  /** The first tokens of a text. */
  read(text: string): Promise<{ readonly ids: readonly number[]; readonly labels: readonly string[] }>;
  /** The text of a token. */
  label(id: number): Promise<string>;
  readonly readsText: boolean;
}

const mostLikely = 5;

const siteOf = { heads: 'z', positions: 'resid_pre' } as const;

export class Laboratory {
  readonly #model: Model;
  readonly #reader: Reader;
  #pair: Pair | undefined;

  /** `model`: on this thread. */
  constructor(model: Model, reader: Reader) {
    this.#model = model;
    this.#reader = reader;
  }

  async lens(text: string): Promise<Omit<Lens, 'where'>> {
    const { ids, labels } = await this.#reader.read(text);
    const found = await this.#model.lens(ids, { top: Math.min(mostLikely, this.#model.info.vocabSize) });
    const logProbs = ids.length > 1 ? [...(await this.#model.logProbs(ids)).values] : [];
    const names = new Map(await Promise.all([...new Set(found.ids)].map(async (id) => [id, await this.#reader.label(id)] as const)));
    const top = found.ids.length / found.layers.length / ids.length;
    const likeliest = Array.from({ length: found.layers.length * ids.length }, (_, cell) =>
      Array.from({ length: top }, (__, i) => ({ label: names.get(found.ids[cell * top + i]!)!, share: found.probabilities[cell * top + i]! })),
    );
    return { labels, likeliest, logProbs };
  }

  async pair(texts: readonly [string, string], words: readonly [string, string]): Promise<Pair> {
    this.#pair = undefined;
    const [clean, corrupt] = [await this.#reader.read(texts[0]), await this.#reader.read(texts[1])];
    const ids = [clean.ids, corrupt.ids] as const;
    const [one, two] = [clean.ids.length, corrupt.ids.length];
    if (one === 0 || two === 0) throw new Error('Write two sentences, one a line.');
    if (one !== two) {
      const said = [clean, corrupt].map(({ labels }) => labels.join(' | '));
      throw new Error(
        `Each token is compared with the one in its place, so both sentences need as many: ${one} (${said[0]}) and ${two} (${said[1]}).`,
      );
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
    const { ids, tokens } = this.#begun();
    const metric = { token: tokens[0], against: tokens[1] };
    const onProgress = (done: number, values: Matrix): void => onValues({ patched: kind, known: Math.round(done * values.data.length), values });
    return (await this.#model.patch(...ids, metric, { by: kind === 'heads' ? 'head' : 'position', signal, onProgress })).values;
  }

  async changed(kind: PatchKind, layer: number, part: number): Promise<BeforeAfter> {
    const { ids } = this.#begun();
    const site = siteOf[kind];
    const value = await this.#read(ids[1], { site, layer });
    const edit = { site, layer, [kind === 'heads' ? 'heads' : 'tokens']: [part], replace: value } as Edit;
    return [await this.#likeliest(ids[0]), await this.#likeliest(ids[0], [edit])];
  }

  /** The edits of a generation that make a change. */
  async editsFor(change: Change): Promise<readonly SessionEdit[]> {
    const { layer } = change;
    if (change.kind === 'scale') return [{ site: 'z', layer, heads: [change.head], scale: change.factor }];
    if (change.kind === 'swap') {
      const { shape, data } = await this.#read(await this.#ids(change.text), { site: 'z', layer, heads: [change.head] });
      return [{ site: 'z', layer, heads: [change.head], set: data.slice(-shape.at(-1)!) }];
    }
    const [toward, away] = [await this.#mean(change.texts[0], layer), await this.#mean(change.texts[1], layer)];
    return [{ site: 'resid_pre', layer, add: Float32Array.from(toward, (value, at) => change.factor * (value - away[at]!)) }];
  }

  #begun(): Pair {
    if (!this.#pair) throw new Error('No experiment was begun.');
    return this.#pair;
  }

  async #ids(text: string): Promise<readonly number[]> {
    const { ids } = await this.#reader.read(text);
    if (ids.length === 0) throw new Error('Write two sentences, one a line.');
    return ids;
  }

  async #read(ids: readonly number[], capture: Capture): Promise<ModelArray> {
    return (await this.#model.run(ids, { capture: [capture], logits: 'none' })).captures[0]!;
  }

  /** The mean over a text's tokens of the residual stream before a layer. */
  async #mean(text: string, layer: number): Promise<Float32Array> {
    const { shape, data } = await this.#read(await this.#ids(text), { site: 'resid_pre', layer });
    const [count, width] = shape as [number, number];
    const sumOf = (col: number): number => data.reduce((sum, value, at) => (at % width === col ? sum + value : sum), 0);
    return Float32Array.from({ length: width }, (_, col) => sumOf(col) / count);
  }

  async #likeliest(ids: readonly number[], edits: readonly Edit[] = []): Promise<LikelyText[]> {
    const { numLayers, vocabSize } = this.#model.info;
    const top = Math.min(mostLikely, vocabSize);
    const found = await this.#model.lens(ids, { layers: [numLayers], top, edits });
    const shares = found.probabilities.slice(-top);
    return Promise.all([...found.ids.slice(-top)].map(async (id, at) => ({ label: await this.#reader.label(id), share: shares[at]! })));
  }

  async #attribution([clean, corrupt]: Pair['ids'], metric: Metric): Promise<Pick<Pair, 'metrics' | 'attribution'>> {
    try {
      const found = await this.#model.attributionPatch(clean, corrupt, metric);
      return { metrics: [found.clean, found.corrupt], attribution: found.values };
    } catch (error) {
      // Some models have no gradients, and all have metrics.
      return { metrics: [await this.#model.measure(clean, metric), await this.#model.measure(corrupt, metric)], attribution: messageOf(error) };
    }
  }

  /** The tokens of two words. An empty one is the likeliest next word of its text that is not the other one. */
  async #tokens(words: readonly [string, string], ids: Pair['ids']): Promise<[number, number]> {
    const given = await Promise.all(words.map(async (word) => (word.trim() === '' ? undefined : this.#token(word))));
    const { numLayers } = this.#model.info;
    const likely = await Promise.all(ids.map(async (each) => [...(await this.#model.lens(each, { layers: [numLayers], top: 2 })).ids.slice(-2)]));
    const first = given[0] ?? likely[0]!.find((id) => id !== given[1])!;
    const second = given[1] ?? [likely[1]![0]!, likely[0]![1]!, likely[1]![1]!].find((id) => id !== first)!;
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
