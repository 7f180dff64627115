// A model whose layers a GPU computes. The core of this thread plans each pass, and does what comes after the last hidden state.

import type { PartName } from '../../generated/parts.js';
import { sites } from '../../generated/tables.js';
import { gpuModel } from '../../generated/gpu_wire.js';
import * as wire from '../../generated/wire.js';
import { optionError } from '../../runtime/errors.js';
import { call, type Operands, type Runtime } from '../../runtime/operands.js';
import { elements } from '../../runtime/shape.js';
import type { ModelInfo } from '../../types/models.js';
import type { Count, Extents, Int64, Operand, Uint32 } from '../../types/wire.js';
import type { PassAnalyses } from '../core/core_analyses.js';
import type { Batch, Generation, GenerationSettings, ModelEngine, PassCall, PassResult, Place } from '../core/engine.js';
import { captureSpan, editSpan, inputsOf } from '../core/lists.js';
import { copied, type CoreModel, output } from '../core/model.js';
import type { GpuPlace } from './device.js';
import { GpuGeneration } from './generation.js';
import type { GpuWeights } from './weights.js';

/** Which part of a pass runs, and what it gives. */
interface Wanted {
  readonly places?: readonly Place[];
  /** Of each place, for one sequence. */
  readonly shapes?: readonly Extents[];
  readonly state?: boolean;
  readonly logits?: boolean;
  /** The token of each sequence whose state and logits are wanted; −1, the default, for all. */
  readonly onlyToken?: number;
  /** The first layer, and its input (rows, embedDim) in place of the embedding. */
  readonly firstLayer?: number;
  readonly from?: Float32Array | undefined;
}

export class GpuModel implements ModelEngine {
  readonly info: ModelInfo;
  readonly encoder = undefined;
  readonly workers = 0;
  readonly device: string;
  readonly #runtime: Runtime;
  readonly #place: GpuPlace;
  /** Without its matrices. */
  readonly core: CoreModel;
  readonly #weights: GpuWeights;
  readonly #generations = new Set<{ dispose(): void }>();

  constructor(runtime: Runtime, place: GpuPlace, core: CoreModel, weights: GpuWeights) {
    this.info = core.info;
    this.device = `gpu: ${place.info.description}`;
    this.#runtime = runtime;
    this.#place = place;
    this.core = core;
    this.#weights = weights;
  }

  get disposed(): boolean {
    return this.core.disposed;
  }

  assertLive(): void {
    this.core.assertLive();
    if (this.#place.player.lost !== undefined) throw this.#place.player.lost;
  }

  load(part: PartName): Promise<void> {
    return this.core.load(part);
  }

  dispose(): void {
    if (this.disposed) return;
    for (const generation of this.#generations) generation.dispose();
    this.#weights.release();
    this.core.dispose();
    this.#place.close();
  }

  async run({ batch, headScales, what, outputs }: PassCall): Promise<PassResult> {
    this.assertLive();
    const { numLayers, embedDim, output: kind } = this.info;
    const rows = batch.batch * batch.tokens;
    if (what.kind === 'embed') {
      const [state] = await this.pass(batch, headScales, { state: true });
      return [this.#finish(batch, state as Float32Array, outputs, what)];
    }
    if (what.kind === 'attentions') {
      const layers = what.layer < 0 ? Array.from({ length: numLayers }, (_, layer) => layer) : [Number(what.layer)];
      const heads = what.head < 0 ? undefined : [Number(what.head)];
      const count = heads?.length ?? this.info.numHeads;
      const shape = [count, batch.tokens, batch.tokens] as unknown as Extents;
      const places = layers.map((layer) => ({ site: sites.pattern, layer, heads }));
      const maps = await this.pass(batch, headScales, { places, shapes: layers.map(() => shape) });
      return [joined(maps)];
    }
    const [hidden, last, logits, pooler, source, ...captured] = outputs;
    if (source !== undefined) throw optionError('return', 'no state of an encoder', this.info.modelType);
    const isLanguage = kind === 'languageModel' || kind === 'maskedLanguageModel';
    const isFinished = (logits !== undefined && !isLanguage) || pooler !== undefined;
    // Hidden states are the inputs of the layers, then the last one.
    const states = hidden === undefined ? [] : Array.from({ length: numLayers }, (_, layer) => ({ site: sites.residPre, layer }));
    const places = [...(what.captures ?? []), ...states];
    const shapes = [...(captured as Extents[]), ...states.map(() => [batch.tokens, embedDim] as unknown as Extents)];
    const lastOnly = isLanguage && logits !== undefined && elements(logits) === batch.batch * this.info.vocabSize && batch.tokens > 1;
    const needsState = last !== undefined || hidden !== undefined || isFinished;
    const wantsLogits = isLanguage && logits !== undefined;
    const found = await this.pass(batch, headScales, {
      ...{ places, shapes, state: needsState, logits: wantsLogits },
      onlyToken: lastOnly && !needsState ? batch.tokens - 1 : -1,
    });
    const state = needsState ? (found.shift() as Float32Array<ArrayBuffer>) : undefined;
    let madeLogits = wantsLogits ? (found.shift() as Float32Array<ArrayBuffer>) : undefined;
    if (lastOnly && needsState && madeLogits !== undefined) madeLogits = lastRows(madeLogits, batch, this.info.vocabSize);
    const captures = found.splice(0, captured.length);
    const ends = isFinished ? this.#finishForward(batch, state as Float32Array, isLanguage ? undefined : logits, pooler) : [];
    return [
      hidden && joined([...found, state as Float32Array<ArrayBuffer>].map((each) => each.subarray(0, rows * embedDim))),
      last && state,
      madeLogits ?? ends[0],
      ends[1],
      undefined,
      ...captures,
    ];
  }

  /** The state, the logits and the captures that are wanted, in this order. */
  async pass(batch: Batch, headScales: Float32Array | undefined, wanted: Wanted): Promise<Float32Array<ArrayBuffer>[]> {
    const { embedDim, vocabSize } = this.info;
    const { places = [], shapes = [], state = false, logits = false, onlyToken = -1, firstLayer = 0, from } = wanted;
    const rows = onlyToken >= 0 ? batch.batch : batch.batch * batch.tokens;
    const lengths = [
      ...(state ? [rows * embedDim] : []),
      ...(logits ? [rows * vocabSize] : []),
      ...shapes.map((shape) => batch.batch * elements(shape)),
    ];
    const { args, raw } = this.#runtime;
    const found = await this.#place.play(this.#runtime, this.#weights.buffers, lengths, (operands) => {
      const inputs = inputsOf(this.#runtime, operands, this.info, batch, headScales);
      const anywhere = shapes.map((shape): Operand => ({ address: 4 as Uint32, dtype: 'f32', shape }));
      const edits = editSpan(this.#runtime, operands, batch.edits);
      const captures = captureSpan(this.#runtime, operands, places, anywhere);
      const start = operands.optionalSpan(from, 'f32', 'state', from?.length ?? 0);
      gpuModel(args, this.#place.limits, inputs, edits, captures, state, logits, onlyToken as Int64, firstLayer as Int64, start);
      operands.run(() => raw.gpuModelForward(this.#weights.handle));
    });
    this.assertLive();
    return found;
  }

  #state(operands: Operands, { batch, tokens }: Batch, state: Float32Array): Operand<'f32'> {
    const { address } = operands.temporary(state.byteLength, 'state');
    this.#runtime.heap.view('f32', address, state.length).set(state);
    return { address, dtype: 'f32', shape: [(batch * tokens) as Count, this.info.embedDim as Count] };
  }

  #finish(batch: Batch, state: Float32Array, [shape]: PassCall['outputs'], what: Extract<PassCall['what'], { kind: 'embed' }>) {
    return call(this.#runtime, (operands) => {
      const inputs = inputsOf(this.#runtime, operands, this.info, batch, undefined);
      const out = output(operands, shape as Extents);
      wire.modelVectors(this.#runtime.args, inputs, what.pooling, what.normalize, this.#state(operands, batch, state), out);
      operands.run(() => this.#runtime.raw.gpuModelEmbed(this.#weights.handle));
      return copied(this.#runtime, out);
    });
  }

  #finishForward(batch: Batch, state: Float32Array, logits: Extents | undefined, pooler: Extents | undefined) {
    return call(this.#runtime, (operands) => {
      const inputs = inputsOf(this.#runtime, operands, this.info, batch, undefined);
      const made = [logits, pooler].map((shape) => shape && output(operands, shape));
      wire.modelFinish(this.#runtime.args, inputs, this.#state(operands, batch, state), made[0], made[1]);
      operands.run(() => this.#runtime.raw.gpuModelFinish(this.#weights.handle));
      return made.map((each) => each && copied(this.#runtime, each));
    });
  }

  async analyses(): Promise<PassAnalyses> {
    const { GpuAnalyses } = await import('./gpu_analyses.js');
    return new GpuAnalyses(this);
  }

  generation(settings: GenerationSettings): GpuGeneration {
    this.assertLive();
    return new GpuGeneration(this.#runtime, this.#place, this.#weights, this.core.handle, this.info, settings, this.#generations);
  }

  /** Each has a pass of its own. */
  together(_generations: readonly Generation[]): void {}
}

function joined(parts: readonly Float32Array[]): Float32Array<ArrayBuffer> {
  const all = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** The rows of the last token of each sequence. */
function lastRows(logits: Float32Array, { batch, tokens }: Batch, width: number): Float32Array<ArrayBuffer> {
  const rows = Array.from({ length: batch }, (_, at) => logits.subarray(((at + 1) * tokens - 1) * width, (at + 1) * tokens * width));
  return joined(rows);
}
