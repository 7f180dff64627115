// The visitor's own GPT-2: its attention weights on a sentence, and its continuation of a text with a KV cache.

import {
  gpt2Config,
  readSafetensors,
  type Multihead,
  type Transformer,
  type TransformerCache,
  type TransformerConfig,
} from 'multihead';
import type { Matrix } from '../attention/matrix.js';
import { modelHeads } from './limits.js';
import { notANumberIn } from './problems.js';
import { bytePairs, wordNumbers, type Encoded, type Tokenizer } from './tokenizers.js';

export const mostTokens = 64;

export interface ModelInfo {
  readonly layers: number;
  readonly heads: number;
  readonly width: number;
  readonly vocabulary: number;
  readonly positions: number;
  readonly parameters: number;
  readonly tokens: Tokenizer['kind'];
  /** Numbers of heads that divide the width. A GPT-2's parameters do not tell its number of heads. */
  readonly possibleHeads: readonly number[];
}

export interface TextAttention extends Encoded {
  /** (H, N, N) for each layer. */
  readonly weights: readonly Matrix[];
  /** Number of tokens in the text; larger than the length of `ids` if the text is too long. */
  readonly found: number;
}

export interface Next {
  readonly label: string;
  /** The most probable tokens with their softmax probabilities, the chosen token first. */
  readonly likeliest: readonly { readonly label: string; readonly share: number }[];
  readonly milliseconds: number;
  /** True if the cache has room for another token. */
  readonly more: boolean;
}

export interface ModelFiles {
  readonly model: ArrayBuffer;
  readonly vocabulary?: string | undefined;
  readonly merges?: string | undefined;
  /**
   * Default: `n_head` of the metadata; otherwise heads of 64 columns; if 64 does not divide the width, its largest
   * divisor up to 4.
   */
  readonly heads?: number | undefined;
}

export class ModelSession {
  readonly #mh: Multihead;
  #model: Transformer | undefined;
  #cache: TransformerCache | undefined;
  #tokenizer: Tokenizer = wordNumbers(1);
  #last = 0;

  constructor(mh: Multihead) {
    this.#mh = mh;
  }

  /** Replaces the model. Keeps the old model if the files are not valid. */
  open({ model: bytes, vocabulary, merges, heads }: ModelFiles): ModelInfo {
    const { stateDict, metadata } = readSafetensors(bytes);
    const broken = notANumberIn(stateDict);
    if (broken !== undefined) throw new Error(`${broken}.`);
    const { embedDim } = gpt2Config(stateDict, 1);
    const possibleHeads = modelHeads.filter((count) => embedDim % count === 0);
    const stated = Number(metadata['n_head']);
    const usual = embedDim % 64 === 0 ? embedDim / 64 : possibleHeads.filter((count) => count <= 4).at(-1)!;
    const config = gpt2Config(stateDict, heads ?? (possibleHeads.includes(stated) ? stated : usual));
    const tokenizer =
      vocabulary !== undefined && merges !== undefined
        ? bytePairs(vocabulary, merges, config.vocabSize)
        : wordNumbers(config.vocabSize);
    const model = this.#mh.transformer(config);
    try {
      model.loadStateDict(stateDict, { names: 'gpt2' });
    } catch (error) {
      model.dispose();
      throw error;
    }
    this.close();
    this.#model = model;
    this.#tokenizer = tokenizer;
    const parameters = Object.entries(stateDict)
      .filter(([name]) => !name.endsWith('lm_head.weight') && !/(^|\.)attn\.(masked_)?bias$/.test(name))
      .reduce((sum, [, { data }]) => sum + data.length, 0);
    return { ...infoOf(config), parameters, tokens: tokenizer.kind, possibleHeads };
  }

  attend(text: string): TextAttention {
    const model = this.#opened();
    const { ids, labels, found } = this.#encode(text);
    if (ids.length === 0) return { ids, labels, weights: [], found };
    const { traces } = model.forward(Int32Array.from(ids), { return: [], trace: ['weights'] });
    const weights = traces.map(({ weights: { shape, data } }) => ({ shape: shape.slice(1), data }));
    return { ids, labels, weights, found };
  }

  /** Reads the text into an empty cache and chooses the next token. */
  start(text: string): Next {
    const model = this.#opened();
    const { ids } = this.#encode(text);
    if (ids.length === 0) throw new Error('There is no text to continue.');
    this.#cache?.dispose();
    const capacity = Math.min(model.config.maxPositions ?? Infinity, ids.length + mostTokens);
    this.#cache = model.createCache({ capacity });
    return this.#step(Int32Array.from(ids));
  }

  /** Appends the last chosen token to the cache, and chooses the next token. */
  next(): Next {
    return this.#step(Int32Array.of(this.#last));
  }

  close(): void {
    this.#cache?.dispose();
    this.#model?.dispose();
    this.#cache = undefined;
    this.#model = undefined;
  }

  #opened(): Transformer {
    if (!this.#model) throw new Error('No model is open.');
    return this.#model;
  }

  #encode(text: string): Encoded & { found: number } {
    const { ids, labels } = this.#tokenizer.encode(text);
    const most = Math.min(mostTokens, this.#opened().config.maxPositions ?? mostTokens);
    return { ids: ids.slice(0, most), labels: labels.slice(0, most), found: ids.length };
  }

  #step(tokens: Int32Array): Next {
    const [model, cache] = [this.#opened(), this.#cache];
    if (!cache) throw new Error('Nothing was started.');
    const begin = performance.now();
    const { logits } = model.step(tokens, cache);
    const milliseconds = performance.now() - begin;
    const row = logits.toFloat32().slice(-model.config.vocabSize);
    logits.dispose();
    const top = row.reduce((most, value) => Math.max(most, value), -Infinity);
    const total = row.reduce((sum, value) => sum + Math.exp(value - top), 0);
    const likeliest = largest(row, mostLikely).map((id) => ({
      label: this.#tokenizer.label(id),
      share: Math.exp(row[id]! - top) / total,
    }));
    this.#last = row.indexOf(top);
    return { label: this.#tokenizer.label(this.#last), likeliest, milliseconds, more: cache.length() < cache.capacity };
  }
}

/** Number of next tokens whose probabilities are shown. */
const mostLikely = 5;

/** The indices of the largest values, the largest first. */
function largest(values: Float32Array, count: number): number[] {
  const found: number[] = [];
  values.forEach((value, i) => {
    const place = found.findIndex((other) => value > values[other]!);
    if (place >= 0) found.splice(place, 0, i);
    else if (found.length < count) found.push(i);
    if (found.length > count) found.pop();
  });
  return found;
}

function infoOf({ numLayers, numHeads, embedDim, vocabSize, maxPositions }: TransformerConfig) {
  return {
    layers: numLayers,
    heads: numHeads,
    width: embedDim,
    vocabulary: vocabSize,
    positions: maxPositions ?? 0,
  };
}
