// Continues a pattern token by token in the worker, with a KV cache and without one, and measures both.

import type { Experiment, Transformer, TransformerCache } from 'multihead';
import { meanOver } from '../base/timing.js';
import { mostTokens, sequenceLength, type Cost, type Prompt, type Tick } from './messages.js';
import { cacheBytes, multiplyAdds, type ModelSize } from './multiply_adds.js';

export class Generation {
  readonly prompt: Prompt;
  readonly #model: Transformer;
  readonly #cache: TransformerCache;
  readonly #size: ModelSize;
  readonly #tokens: number[];

  constructor(experiment: Experiment, size: ModelSize, sequence: number) {
    const { tokens } = experiment.heldOut(sequence, 1);
    const period = periodOf(tokens);
    this.#tokens = [...tokens.subarray(0, Math.min(period + 1, sequenceLength))];
    this.prompt = { tokens: [...this.#tokens], period };
    this.#model = experiment.model;
    this.#size = size;
    this.#cache = this.#model.createCache({ capacity: mostTokens });
  }

  tick(): Tick {
    const length = this.#tokens.length;
    if (length >= mostTokens) throw new Error(`The pattern ends at ${mostTokens} tokens.`);
    const all = Int32Array.from(this.#tokens);
    const cached = this.#withCache(all);
    const plain = this.#withoutCache(all);
    this.#tokens.push(cached.token);
    return { length: length + 1, cached, plain };
  }

  dispose(): void {
    this.#cache.dispose();
  }

  /** Computes only the tokens that the cache does not hold: the prompt at first, then one token per tick. */
  #withCache(all: Int32Array): Cost {
    const held = this.#cache.length();
    const rest = all.subarray(held);
    const milliseconds = timeOf(() => {
      this.#cache.truncate(held);
      this.#model.step(rest, this.#cache).logits.dispose();
    });
    this.#cache.truncate(held);
    const { logits } = this.#model.step(rest, this.#cache);
    const token = largestInLastRow(logits.data as Float32Array, this.#size.vocabSize);
    logits.dispose();
    const multiplications = multiplyAdds(this.#size, held, all.length);
    const bytes = cacheBytes(this.#size, all.length);
    return { token, rows: rest.length, multiplyAdds: multiplications, bytes, milliseconds };
  }

  #withoutCache(all: Int32Array): Cost {
    const milliseconds = timeOf(() => this.#model.forward(all).logits.dispose());
    const { logits } = this.#model.forward(all);
    const token = largestInLastRow(logits.data as Float32Array, this.#size.vocabSize);
    logits.dispose();
    return {
      ...{ token, rows: all.length, bytes: 0, milliseconds },
      multiplyAdds: multiplyAdds(this.#size, 0, all.length),
    };
  }
}

/** Period of a sequence in tokens; its length if it does not repeat. */
export function periodOf(tokens: Int32Array): number {
  for (let period = 1; period < tokens.length; period += 1) {
    if (tokens.subarray(period).every((token, i) => token === tokens[i])) return period;
  }
  return tokens.length;
}

function largestInLastRow(logits: Float32Array, width: number): number {
  const row = logits.subarray(logits.length - width);
  return row.reduce((best, value, i) => (value > row[best]! ? i : best), 0);
}

/**
 * The smallest of five mean durations in milliseconds: browsers' clocks are too coarse for one call, and other work
 * interferes.
 */
function timeOf(call: () => void): number {
  return Math.min(...Array.from({ length: 5 }, () => meanOver(0.6, call)));
}
