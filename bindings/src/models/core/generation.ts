// A session with a KV cache and a sampler, both in the core of this thread.

import * as wire from '../../generated/wire.js';
import { bytesPerElement, type Block } from '../../runtime/memory.js';
import { call, checkStatus, type Runtime } from '../../runtime/operands.js';
import type { LikelyToken } from '../../types/models.js';
import type { Count, Int32, Uint32 } from '../../types/wire.js';
import type { Generation, GenerationSettings, GenerationStep } from './engine.js';

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

export class CoreGeneration implements Generation {
  readonly #runtime: Runtime;
  readonly #settings: GenerationSettings;
  readonly #session: Int32;
  readonly #sessionBytes: number;
  readonly #sampler: Int32 | undefined;
  /** The memory of ids and logits, kept for all steps, so that a step allocates nothing. */
  readonly #blocks: Block[] = [];
  readonly #vocabSize: number;
  #begin = 0;
  #count: number;
  #disposed = false;

  constructor(runtime: Runtime, model: Int32, vocabSize: number, settings: GenerationSettings) {
    const { raw, args, heap } = runtime;
    const { prompt, capacity, cache, sampling } = settings;
    this.#runtime = runtime;
    this.#settings = settings;
    this.#vocabSize = vocabSize;
    this.#count = prompt.length;
    this.#session = call(runtime, (operands) => {
      wire.session(args, capacity, cache);
      return operands.make(() => raw.sessionCreate(model));
    });
    this.#sessionBytes = raw.sessionBytes(this.#session);
    heap.count(this.#sessionBytes);
    try {
      this.#sampler = call(runtime, (operands) => {
        wire.sampler(args, sampling);
        return operands.make(() => raw.samplerCreate());
      });
      this.#blocks.push(heap.allocate(capacity * bytesPerElement('i32'), 'ids'));
      this.#blocks.push(heap.allocate(vocabSize * bytesPerElement('f32'), 'logits'));
      heap.view('i32', this.#ids.address, prompt.length).set(prompt);
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  get #ids(): Block {
    return this.#blocks[0] as Block;
  }

  next(): GenerationStep {
    const { raw, args, heap } = this.#runtime;
    const { likeliest: wanted, capacity } = this.#settings;
    const { address } = this.#blocks[1] as Block;
    const logits = { address, dtype: 'f32', shape: [this.#vocabSize as Count] } as const;
    const count = this.#count;
    const next = { address: (this.#ids.address + 4 * this.#begin) as Uint32, length: (count - this.#begin) as Uint32 };
    wire.sessionAppend(args, next, logits);
    args.close();
    checkStatus(this.#runtime, raw.sessionAppend(this.#session));
    const likeliest = likeliestOf(heap.view('f32', address, wanted && this.#vocabSize), wanted);
    wire.choose(args, logits, { address: this.#ids.address, length: count as Uint32 });
    args.close();
    checkStatus(this.#runtime, raw.samplerChoose(this.#sampler as Int32));
    const { token } = wire.readChosenToken(args.results());
    heap.view('i32', this.#ids.address, capacity)[count] = token;
    this.#begin = count;
    this.#count = count + 1;
    return { token, likeliest };
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    const { raw, heap } = this.#runtime;
    heap.count(-this.#sessionBytes);
    if (!raw.dead) {
      if (this.#sampler !== undefined) raw.samplerRelease(this.#sampler);
      raw.sessionRelease(this.#session);
    }
    for (const block of this.#blocks) heap.release(block);
  }
}
