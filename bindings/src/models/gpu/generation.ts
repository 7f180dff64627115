// A session whose caches are on a GPU: each step plans a pass, reads one row of logits, and chooses with the core's sampler.

import { gpuSession } from '../../generated/gpu_wire.js';
import * as wire from '../../generated/wire.js';
import type { Storage } from '../../gpu/buffers.js';
import { disposedError, optionError } from '../../runtime/errors.js';
import { type Block, bytesPerElement } from '../../runtime/memory.js';
import { call, checkStatus, type Runtime } from '../../runtime/operands.js';
import { dtypes } from '../../generated/tables.js';
import type { ModelInfo } from '../../types/models.js';
import type { Count, Int32, Int64, Operand, Uint32 } from '../../types/wire.js';
import type { GenerationSettings, GenerationStep, SteppedGeneration } from '../core/engine.js';
import { topTokensOf } from '../core/generation.js';
import { editSpan, numberSpan } from '../core/lists.js';
import type { GpuPlace } from './device.js';
import type { GpuWeights } from './weights.js';

/** Tokens of a pass of a prompt: their values need memory on the GPU. */
const mostTokens = 512;

export class GpuGeneration implements SteppedGeneration {
  readonly #runtime: Runtime;
  readonly #place: GpuPlace;
  readonly #weights: GpuWeights;
  readonly #settings: GenerationSettings;
  readonly #vocabulary: number;
  readonly #live: Set<{ dispose(): void }>;
  #session = 0 as Int32;
  #sampler = 0 as Int32;
  readonly #caches: Storage[] = [];
  #block: Block = { address: 0 as Uint32, bytes: 0 };
  /** The numbers of the edits, which the session reads. */
  #edits: readonly Block[] = [];
  #next: Int32Array;
  /** Tokens in the session. */
  #length = 0;

  constructor(
    runtime: Runtime,
    place: GpuPlace,
    weights: GpuWeights,
    model: Int32,
    info: ModelInfo,
    settings: GenerationSettings,
    live: Set<{ dispose(): void }>,
  ) {
    const { raw, args, heap } = runtime;
    const { numLayers, numHeads, numKvHeads, headDim, vocabSize } = info;
    for (const name of ['beams', 'lookup', 'prefix'] as const) {
      if (settings[name] !== undefined) throw optionError(optionOf[name], 'none for a model on a GPU', 'some');
    }
    this.#runtime = runtime;
    this.#place = place;
    this.#weights = weights;
    this.#settings = settings;
    this.#vocabulary = vocabSize;
    this.#live = live;
    this.#next = settings.prompt;
    live.add(this);
    try {
      this.#session = call(runtime, (operands) => {
        const scales = operands.optionalSpan(settings.headScales, 'f32', 'headScales', numLayers * numHeads);
        wire.session(args, settings.capacity, settings.cache, scales, editSpan(runtime, operands, settings.edits));
        const made = operands.make(() => raw.gpuSessionCreate(weights.handle, model));
        this.#edits = operands.keepInputs().copies;
        return made;
      });
      this.#sampler = call(runtime, (operands) => {
        const rules = numberSpan(operands, runtime, settings.rules, 'rules');
        wire.sampler(args, settings.sampling, rules, settings.prompt.length as Int64, settings.end as Int64);
        return operands.make(() => raw.samplerCreate());
      });
      this.#block = heap.allocate(vocabSize * bytesPerElement('f32'), 'logits');
      const bytes = (settings.cache === dtypes.f32 ? 4 : 2) * numKvHeads * headDim * settings.capacity;
      while (this.#caches.length < 2 * numLayers) this.#caches.push(place.allocate(bytes, 'cache'));
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  get #logits(): Operand<'f32'> {
    return { address: this.#block.address, dtype: 'f32', shape: [this.#vocabulary as Count] };
  }

  async #compute(): Promise<void> {
    const { raw, args, heap } = this.#runtime;
    const buffers = [...this.#weights.buffers, ...this.#caches];
    while (this.#next.length > 0) {
      const ids = this.#next.subarray(0, mostTokens);
      const [logits] = await this.#place.play(this.#runtime, buffers, [this.#vocabulary], (operands) => {
        gpuSession(args, this.#place.limits, operands.span(ids, 'i32', 'prompt'));
        operands.run(() => raw.gpuSessionAppend(this.#weights.handle, this.#session));
      });
      if (!this.#live.has(this)) throw disposedError('generate', 'a model');
      if (!(logits as Float32Array).every(Number.isFinite)) throw optionError('logits', 'finite numbers', 'NaN or an infinity');
      this.#length += ids.length;
      this.#next = this.#next.subarray(ids.length);
      heap.view('f32', this.#block.address, this.#vocabulary).set(logits as Float32Array);
    }
  }

  #choose(): GenerationStep {
    const { raw, args, heap } = this.#runtime;
    const wanted = this.#settings.topTokens;
    const topTokens = topTokensOf(heap.view('f32', this.#block.address, wanted && this.#vocabulary), wanted);
    wire.choose(args, this.#logits, this.#length as Int64);
    args.close();
    checkStatus(this.#runtime, raw.samplerChoose(this.#sampler, this.#session));
    const { token } = wire.readChosenToken(args.results());
    this.#next = Int32Array.of(token);
    return { token, topTokens, accepted: false };
  }

  async next(): Promise<GenerationStep> {
    await this.#compute();
    return this.#choose();
  }

  async logits(): Promise<Float32Array> {
    await this.#compute();
    return this.#runtime.heap.view('f32', this.#block.address, this.#vocabulary).slice();
  }

  async choose(logits: Float32Array): Promise<GenerationStep> {
    await this.#compute();
    this.#runtime.heap.view('f32', this.#block.address, this.#vocabulary).set(logits);
    return this.#choose();
  }

  async fill(): Promise<void> {
    await this.#compute();
  }

  dispose(): void {
    if (!this.#live.delete(this)) return;
    const { raw, heap } = this.#runtime;
    for (const storage of this.#caches) this.#place.release(storage);
    for (const block of [this.#block, ...this.#edits]) heap.release(block);
    if (raw.dead) return;
    if (this.#sampler > 0) raw.samplerRelease(this.#sampler);
    if (this.#session > 0) raw.sessionRelease(this.#session);
  }
}

const optionOf = { beams: 'numBeams', lookup: 'promptLookupNumTokens', prefix: 'prefix' } as const;
