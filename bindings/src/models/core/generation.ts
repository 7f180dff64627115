// A session with a KV cache and a sampler, both in the core of this thread.

import * as wire from '../../generated/wire.js';
import { bytesPerElement, type Block } from '../../runtime/memory.js';
import { call, checkStatus, type Runtime } from '../../runtime/operands.js';
import type { TopToken, ModelInfo } from '../../types/models.js';
import type { Count, Int32, Int64, Operand } from '../../types/wire.js';
import { abandoned } from './abandoned.js';
import type { Generation, GenerationSettings, GenerationStep } from './engine.js';
import { editSpan, numberSpan } from './lists.js';

/** The largest logits with their shares of the softmax, the largest first, of several equal ones the first. */
function topTokensOf(logits: Float32Array, count: number): TopToken[] {
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

/** What a generation owns in the core: a session, a sampler, and the memory of the logits. */
export class SessionMemory {
  readonly #runtime: Runtime;
  /** Those of one model that are not disposed. */
  readonly #live: Set<{ dispose(): void }>;
  readonly session: Int32;
  readonly sampler: Int32;
  readonly logits: Operand<'f32'>;
  readonly #block: Block;
  /** The numbers of the edits, which the session reads. */
  #edits: readonly Block[] = [];
  #bytes = 0;

  constructor(runtime: Runtime, model: Int32, info: ModelInfo, settings: GenerationSettings, live: Set<{ dispose(): void }>) {
    const { raw, args, heap } = runtime;
    const { numLayers, numHeads, vocabSize } = info;
    this.#runtime = runtime;
    this.#live = live;
    this.#block = heap.allocate(vocabSize * bytesPerElement('f32'), 'logits');
    this.logits = { address: this.#block.address, dtype: 'f32', shape: [vocabSize as Count] };
    let session: Int32 | undefined;
    try {
      session = call(runtime, (operands) => {
        const scales = operands.optionalSpan(settings.headScales, 'f32', 'headScales', numLayers * numHeads);
        wire.session(args, settings.capacity, settings.cache, scales, editSpan(runtime, operands, settings.edits));
        const made = operands.make(() => raw.sessionCreate(model));
        this.#edits = operands.keepInputs().copies;
        return made;
      });
      this.sampler = call(runtime, (operands) => {
        const rules = numberSpan(operands, runtime, settings.rules, 'rules');
        wire.sampler(args, settings.sampling, rules, settings.prompt.length as Int64, settings.end as Int64);
        return operands.make(() => raw.samplerCreate());
      });
    } catch (error) {
      if (session !== undefined && !raw.dead) raw.sessionRelease(session);
      this.#release();
      throw error;
    }
    this.session = session;
    live.add(this);
    try {
      if (settings.source !== undefined) this.#encode(settings.source, settings.sourceEdits);
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  #encode(source: Int32Array, edits: GenerationSettings['sourceEdits']): void {
    const { raw, args } = this.#runtime;
    call(this.#runtime, (operands) => {
      wire.sessionEncode(args, operands.span(source, 'i32', 'prompt'), editSpan(this.#runtime, operands, edits));
      operands.run(() => raw.sessionEncode(this.session));
    });
  }

  /** Appends tokens, and computes the logits of the next one. */
  append(ids: Int32Array): void {
    const { raw, args, heap } = this.#runtime;
    call(this.#runtime, (operands) => {
      wire.sessionAppend(args, operands.span(ids, 'i32', 'prompt'), this.logits);
      operands.run(() => raw.sessionAppend(this.session));
    });
    // The caches grow.
    const bytes = raw.sessionBytes(this.session);
    heap.count(bytes - this.#bytes);
    this.#bytes = bytes;
  }

  dispose(): void {
    if (!this.#live.delete(this)) return;
    const { raw, heap } = this.#runtime;
    heap.count(-this.#bytes);
    if (!raw.dead) {
      raw.samplerRelease(this.sampler);
      raw.sessionRelease(this.session);
    }
    this.#release();
  }

  #release(): void {
    for (const block of [this.#block, ...this.#edits]) this.#runtime.heap.release(block);
  }
}

export class CoreGeneration implements Generation {
  readonly #runtime: Runtime;
  readonly #topTokens: number;
  readonly #memory: SessionMemory;
  #next: Int32Array;

  constructor(runtime: Runtime, model: Int32, info: ModelInfo, settings: GenerationSettings, live: Set<{ dispose(): void }>) {
    this.#runtime = runtime;
    this.#topTokens = settings.topTokens;
    this.#next = settings.prompt;
    this.#memory = new SessionMemory(runtime, model, info, settings, live);
    abandoned?.register(this, this.#memory, this);
  }

  next(): GenerationStep {
    const { raw, args, heap } = this.#runtime;
    const { session, sampler, logits } = this.#memory;
    this.#memory.append(this.#next);
    const wanted = this.#topTokens;
    const topTokens = topTokensOf(heap.view('f32', logits.address, wanted && (logits.shape[0] as number)), wanted);
    wire.choose(args, logits);
    args.close();
    checkStatus(this.#runtime, raw.samplerChoose(sampler, session));
    const { token } = wire.readChosenToken(args.results());
    this.#next = Int32Array.of(token);
    return { token, topTokens };
  }

  nextAtOnce(): GenerationStep {
    return this.next();
  }

  dispose(): void {
    abandoned?.unregister(this);
    this.#memory.dispose();
  }
}
