// A session with a KV cache and a sampler, both in the core of this thread.

import * as wire from '../../generated/wire.js';
import { bytesPerElement, type Block } from '../../runtime/memory.js';
import { call, checkStatus, type Runtime } from '../../runtime/operands.js';
import type { TopToken, ModelInfo } from '../../types/models.js';
import type { Count, Int32, Int64, Operand, Uint32 } from '../../types/wire.js';
import { abandoned } from './abandoned.js';
import type { GenerationSettings, GenerationStep, SteppedGeneration } from './engine.js';
import { editSpan, numberSpan } from './lists.js';

/** The largest logits with their shares of the softmax, the largest first, of several equal ones the first. */
export function topTokensOf(logits: Float32Array, count: number): TopToken[] {
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

/** The tokens after the first occurrence of the longest end of `ids` that occurred: look_up() of generate.cc. */
function lookUp(ids: readonly number[], longest: number, most: number): readonly number[] {
  for (let n = Math.min(longest, ids.length - 1); n > 0 && most > 0; n -= 1) {
    const end = ids.slice(-n);
    for (let at = 0; at < ids.length - n; at += 1) {
      if (end.every((id, i) => ids[at + i] === id)) return ids.slice(at + n, at + n + most);
    }
  }
  return [];
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

  /** `create`: makes the session in the core. */
  constructor(
    runtime: Runtime,
    model: Int32,
    info: ModelInfo,
    settings: GenerationSettings,
    live: Set<{ dispose(): void }>,
    create = () => runtime.raw.sessionCreate(model),
  ) {
    const { raw, args, heap } = runtime;
    const { numLayers, numHeads, vocabSize } = info;
    this.#runtime = runtime;
    this.#live = live;
    const rows = 1 + (settings.lookup?.most ?? 0);
    this.#block = heap.allocate(rows * vocabSize * bytesPerElement('f32'), 'logits');
    this.logits = { address: this.#block.address, dtype: 'f32', shape: [vocabSize as Count] };
    let session: Int32 | undefined;
    try {
      session = call(runtime, (operands) => {
        const { prefix } = settings;
        if (prefix !== undefined) {
          wire.sessionFork(args, prefix.common as Int64, settings.capacity as Int64);
          return operands.make((raw) => raw.sessionFork((prefix.of as CoreGeneration).session));
        }
        const scales = operands.optionalSpan(settings.headScales, 'f32', 'headScales', numLayers * numHeads);
        wire.session(args, settings.capacity, settings.cache, scales, editSpan(runtime, operands, settings.edits));
        const made = operands.make(create);
        this.#edits = operands.keepInputs().copies;
        return made;
      });
      this.sampler = call(runtime, (operands) => {
        const rules = numberSpan(operands, runtime, settings.rules, 'rules');
        wire.sampler(args, settings.sampling, rules, settings.prompt.length as Int64, settings.end as Int64);
        return operands.make((raw) => raw.samplerCreate());
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
    call(this.#runtime, (operands) => {
      wire.sessionEncode(this.#runtime.args, operands.span(source, 'i32', 'prompt'), editSpan(this.#runtime, operands, edits));
      operands.run((raw) => raw.sessionEncode(this.session));
    });
  }

  /** Appends tokens, and computes the logits after the last one, or after the last `rows`, which are then all; 0: none. */
  append(ids: Int32Array, rows: number): void {
    const { shape } = this.logits;
    const logits = rows > 1 ? { ...this.logits, shape: [rows as Count, ...shape] } : this.logits;
    call(this.#runtime, (operands) => {
      wire.sessionAppend(this.#runtime.args, operands.span(ids, 'i32', 'prompt'), rows > 0 ? logits : undefined);
      operands.run((raw) => raw.sessionAppend(this.session));
    });
    this.count();
  }

  /** Counts the memory of the caches, which grow. */
  count(): void {
    const { raw, heap } = this.#runtime;
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

export class CoreGeneration implements SteppedGeneration {
  readonly info: ModelInfo;
  readonly #runtime: Runtime;
  readonly #settings: GenerationSettings;
  readonly #memory: SessionMemory;
  /** All tokens so far, with the last one that was chosen. */
  readonly #ids: number[];
  /** Tokens in the session. */
  #length: number;
  /** The tokens to append, or that were appended last. */
  #next: Int32Array;
  /** Number of logits that are computed for them, and of those that are used. */
  #rows = 0;
  #row = 0;

  constructor(runtime: Runtime, model: Int32, info: ModelInfo, settings: GenerationSettings, live: Set<{ dispose(): void }>) {
    this.info = info;
    this.#runtime = runtime;
    this.#settings = settings;
    this.#ids = [...settings.prompt];
    this.#length = settings.prefix?.common ?? 0;
    this.#next = settings.prompt.subarray(this.#length);
    this.#memory = new SessionMemory(runtime, model, info, settings, live);
    abandoned?.register(this, this.#memory, this);
  }

  get session(): Int32 {
    return this.#memory.session;
  }

  /** The logits of the next token. Those after tokens that were looked up are computed already. */
  #compute(): Operand<'f32'> {
    const { logits } = this.#memory;
    if (this.#row === this.#rows) {
      // The prompt has logits after its last token alone.
      this.#rows = this.#ids.length === this.#settings.prompt.length ? 1 : this.#next.length;
      this.#row = 0;
      this.#memory.append(this.#next, this.#rows);
      this.#length += this.#next.length;
    }
    const address = (logits.address + this.#row * bytesPerElement('f32') * (logits.shape[0] as number)) as Uint32;
    return { ...logits, address };
  }

  #choose(logits: Operand<'f32'>): GenerationStep {
    const { raw, args, heap } = this.#runtime;
    const { session, sampler } = this.#memory;
    const wanted = this.#settings.topTokens;
    const topTokens = topTokensOf(heap.view('f32', logits.address, wanted && (logits.shape[0] as number)), wanted);
    const row = this.#row;
    const before = this.#length - this.#rows + row + 1;
    wire.choose(args, logits, before as Int64);
    args.close();
    checkStatus(this.#runtime, raw.samplerChoose(sampler, session));
    const { token } = wire.readChosenToken(args.results());
    this.#ids.push(token);
    this.#row += 1;
    if (this.#row < this.#rows && this.#next[this.#row] !== token) {
      args.begin();
      args.close();
      checkStatus(this.#runtime, raw.sessionTruncate(session, before as Int32));
      this.#length = before;
      this.#row = this.#rows;
    }
    if (this.#row === this.#rows) {
      const { lookup, end } = this.#settings;
      const found = lookup && lookUp(this.#ids, lookup.longest, Math.min(lookup.most, end - this.#ids.length - 1));
      this.#next = Int32Array.of(token, ...(found ?? []));
    }
    return { token, topTokens, accepted: row > 0 };
  }

  /** The only token that the next pass appends; undefined for more, and without a pass. */
  get needed(): number | undefined {
    const isOne = this.#row === this.#rows && this.#next.length === 1 && this.#ids.length > this.#settings.prompt.length;
    return isOne ? this.#next[0] : undefined;
  }

  /** Takes the logits of a pass that appended that token. */
  take(logits: Float32Array): void {
    this.#runtime.heap.view('f32', this.#memory.logits.address, logits.length).set(logits);
    [this.#rows, this.#row] = [1, 0];
    this.#length += 1;
    this.#memory.count();
  }

  next(): GenerationStep {
    return this.#choose(this.#compute());
  }

  nextAtOnce(): GenerationStep {
    return this.next();
  }

  logits(): Float32Array {
    const { address, shape } = this.#compute();
    return this.#runtime.heap.view('f32', address, shape[0] as number).slice();
  }

  choose(logits: Float32Array): GenerationStep {
    const computed = this.#compute();
    this.#runtime.heap.view('f32', computed.address, computed.shape[0] as number).set(logits);
    return this.#choose(computed);
  }

  fill(): void {
    this.#memory.append(this.#next, 0);
  }

  dispose(): void {
    abandoned?.unregister(this);
    this.#memory.dispose();
  }
}

/** See {@link ModelEngine.together}. */
export function stepTogether(runtime: Runtime, generations: readonly unknown[]): void {
  const all = generations.filter((each): each is CoreGeneration => each instanceof CoreGeneration && each.needed !== undefined);
  if (all.length < 2) return;
  const { vocabSize } = (all[0] as CoreGeneration).info;
  call(runtime, (operands) => {
    const { address } = operands.temporary(all.length * vocabSize * bytesPerElement('f32'), 'logits');
    const sessions = Int32Array.from(all, ({ session }) => session);
    const ids = Int32Array.from(all, ({ needed }) => needed as number);
    const logits: Operand<'f32'> = { address, dtype: 'f32', shape: [all.length as Count, vocabSize as Count] };
    wire.sessionsStep(runtime.args, operands.span(sessions, 'i32', 'sessions'), operands.span(ids, 'i32', 'ids'), logits);
    operands.run((raw) => raw.sessionsStep());
    all.forEach((each, at) => each.take(runtime.heap.view('f32', (address + at * vocabSize * bytesPerElement('f32')) as Uint32, vocabSize)));
  });
}
