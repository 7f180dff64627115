// Several generations side by side: when all of them wait for their next token, one pass computes it for all.

import type { Awaitable, Generation, GenerationStep, ModelEngine, SteppedGeneration } from './core/engine.js';
import { together } from './core/generations.js';

/** Most of them. A pass over more rows takes no less time for each; their caches need memory. */
export const mostTogether = 8;

export class Group {
  readonly #engine: ModelEngine;
  readonly #members = new Set<Generation>();
  #waiting: { readonly of: Generation; readonly go: (pass: Awaitable<void>) => void }[] = [];

  constructor(engine: ModelEngine) {
    this.#engine = engine;
  }

  join(generation: Generation): SteppedGeneration {
    const stepped = generation as SteppedGeneration;
    this.#members.add(generation);
    const ready = (): Promise<void> =>
      new Promise((go) => {
        this.#waiting.push({ of: generation, go });
        this.#run();
      });
    return {
      next: async (): Promise<GenerationStep> => {
        await ready();
        return generation.next();
      },
      logits: async (): Promise<Float32Array> => {
        await ready();
        return stepped.logits();
      },
      choose: (logits) => stepped.choose(logits),
      fill: () => stepped.fill(),
      dispose: () => {
        generation.dispose();
        this.#members.delete(generation);
        this.#waiting = this.#waiting.filter(({ of }) => of !== generation);
        this.#run();
      },
    };
  }

  #run(): void {
    const waiting = this.#waiting;
    if (waiting.length === 0 || waiting.length < this.#members.size) return;
    this.#waiting = [];
    let pass: Awaitable<void>;
    try {
      const all = waiting.map(({ of }) => of);
      pass = together(this.#engine, all);
    } catch (error) {
      pass = Promise.reject(error as Error);
    }
    for (const { go } of waiting) go(pass);
  }
}
