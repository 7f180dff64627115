// Trains two models on a language in which most letters repeat the letter three places before. One model has the causal mask; the
// other sees the letter that it must guess. A scene of the story shows both.

import type { Multihead, Trainer, Transformer } from 'multihead';
import { uniform } from '../base/random.js';

/** Shares of right guesses, from 0 to 1. */
export interface Guesses {
  /** On texts with the same mask as in training. */
  readonly training: number;
  /** The share for the letter that follows a text. No model has seen that letter. */
  readonly writing: number;
}

export interface Peeked {
  readonly step: number;
  readonly masked: Guesses;
  readonly peeking: Guesses;
}

const letters = 8;
/** Letters of a text. The last has no next letter to learn from. */
const length = 17;
const [batch, heldOut] = [16, 96];
/** A letter repeats the one so far back. */
const back = 3;
/** Share of the letters that are drawn instead, so that nobody can be right always. */
const drawn = 0.2;

interface Learner {
  readonly model: Transformer;
  readonly trainer: Trainer;
}

export class Peek {
  readonly #masked: Learner;
  readonly #peeking: Learner;
  readonly #tests: Int32Array;
  #step = 0;
  readonly #random = uniform(7);

  constructor(mh: Multihead) {
    const learner = (causal: boolean): Learner => {
      const model = mh.transformer({
        ...{ numLayers: 1, numHeads: 2, embedDim: 32, mlpDim: 64, vocabSize: letters, causal, norm: 'rmsNorm', rope: { style: 'half' } },
      });
      model.initialize({ seed: 1 });
      return { model, trainer: mh.trainer(model, { learningRate: 1e-2 }) };
    };
    this.#masked = learner(true);
    this.#peeking = learner(false);
    this.#tests = this.#texts(heldOut);
  }

  run(steps: number): Peeked {
    for (let i = 0; i < steps; i += 1) {
      const tokens = this.#texts(batch);
      const targets = tokens.map((_, at) => (at % length < length - 1 ? tokens[at + 1]! : -1));
      for (const { trainer } of [this.#masked, this.#peeking]) trainer.step(tokens, targets, { batch });
    }
    this.#step += steps;
    return { step: this.#step, masked: this.#guesses(this.#masked), peeking: this.#guesses(this.#peeking) };
  }

  dispose(): void {
    for (const { model, trainer } of [this.#masked, this.#peeking]) {
      trainer.dispose();
      model.dispose();
    }
  }

  #texts(count: number): Int32Array {
    const tokens = new Int32Array(count * length);
    tokens.forEach((_, at) => {
      const repeats = at % length >= back && this.#random() >= drawn;
      tokens[at] = repeats ? tokens[at - back]! : Math.floor(this.#random() * letters);
    });
    return tokens;
  }

  #guesses({ model }: Learner): Guesses {
    const whole = this.#right(model, length, (at) => at >= back && at < length - 1);
    const last = length - 2;
    return { training: whole, writing: this.#right(model, last + 1, (at) => at === last) };
  }

  /** The share of right guesses at some positions, on texts that end after `seen` letters. */
  #right(model: Transformer, seen: number, counts: (at: number) => boolean): number {
    const texts = Array.from({ length: heldOut }, (_, i) => this.#tests.subarray(i * length, (i + 1) * length));
    const tokens = Int32Array.from(texts.flatMap((text) => [...text.subarray(0, seen)]));
    const { logits } = model.forward(tokens, { batch: heldOut });
    const data = logits.toFloat32();
    logits.dispose();
    let [right, all] = [0, 0];
    texts.forEach((text, row) => {
      for (let at = 0; at < seen; at += 1) {
        if (!counts(at)) continue;
        const scores = data.subarray((row * seen + at) * letters, (row * seen + at + 1) * letters);
        all += 1;
        if (scores.indexOf(Math.max(...scores)) === text[at + 1]) right += 1;
      }
    });
    return right / all;
  }
}
