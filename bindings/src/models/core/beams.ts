// A search with beams in the core of this thread. Its tokens are given when it has ended.

import * as wire from '../../generated/wire.js';
import type { Block } from '../../runtime/memory.js';
import { disposedError } from '../../runtime/errors.js';
import { call, checkStatus, type Runtime } from '../../runtime/operands.js';
import type { ModelInfo } from '../../types/models.js';
import type { Int32, Int64 } from '../../types/wire.js';
import { Turn } from './turns.js';
import { abandoned } from './abandoned.js';
import type { BeamSettings, Generation, GenerationSettings, GenerationStep } from './engine.js';
import { editSpan, ints, numberSpan } from './lists.js';

/** What a search owns in the core. */
class SearchMemory {
  readonly #runtime: Runtime;
  readonly #live: Set<{ dispose(): void }>;
  readonly handle: Int32;
  readonly isLive = (): boolean => this.#live.has(this);
  /** The numbers of the edits, which the search reads. */
  #edits: readonly Block[] = [];

  constructor(runtime: Runtime, model: Int32, { numLayers, numHeads }: ModelInfo, settings: GenerationSettings, live: Set<{ dispose(): void }>) {
    const { count, lengthPenalty, earlyStopping, stops, most } = settings.beams as BeamSettings;
    this.#runtime = runtime;
    this.#live = live;
    this.handle = call(runtime, (operands) => {
      const isDecoder = settings.source !== undefined;
      wire.beamSearch(
        runtime.args,
        ints(operands, settings.source ?? settings.prompt, 'prompt'),
        ints(operands, isDecoder ? settings.prompt : new Int32Array(), 'decoderInput'),
        ints(operands, stops, 'stop'),
        most as Int64,
        count as Int64,
        lengthPenalty,
        settings.sampling.repetitionPenalty,
        earlyStopping,
        settings.cache,
        operands.optionalSpan(settings.headScales, 'f32', 'headScales', numLayers * numHeads),
        editSpan(runtime, operands, settings.edits),
        editSpan(runtime, operands, settings.sourceEdits),
        numberSpan(operands, runtime, settings.rules, 'rules'),
      );
      const made = operands.make((raw) => raw.beamSearchCreate(model));
      this.#edits = operands.keepInputs().copies;
      return made;
    });
    live.add(this);
  }

  dispose(): void {
    if (!this.#live.delete(this)) return;
    const { raw, heap } = this.#runtime;
    if (!raw.dead) raw.beamSearchRelease(this.handle);
    for (const block of this.#edits) heap.release(block);
  }
}

export class CoreBeams implements Generation {
  readonly #runtime: Runtime;
  readonly #memory: SearchMemory;
  /** The tokens of the best sequence, once the search has ended. */
  #ids: readonly number[] | undefined;
  #given = 0;

  constructor(runtime: Runtime, model: Int32, info: ModelInfo, settings: GenerationSettings, live: Set<{ dispose(): void }>) {
    this.#runtime = runtime;
    this.#memory = new SearchMemory(runtime, model, info, settings, live);
    abandoned?.register(this, this.#memory, this);
  }

  /** One more token for each beam. */
  #step(): void {
    const { raw, args } = this.#runtime;
    args.begin();
    args.close();
    checkStatus(this.#runtime, raw.beamSearchStep(this.#memory.handle));
    const { done, ids } = wire.readSearchProgress(args.results());
    if (done) this.#ids = [...ids];
  }

  #give(): GenerationStep {
    const token = (this.#ids as readonly number[])[this.#given] as number;
    this.#given += 1;
    return { token, topTokens: [], accepted: false };
  }

  async next(): Promise<GenerationStep> {
    const turn = new Turn();
    while (this.#ids === undefined) {
      this.#step();
      if (!turn.isLong) continue;
      await turn.end();
      if (!this.#memory.isLive()) throw disposedError('model', 'a model');
    }
    return this.#give();
  }

  nextAtOnce(): GenerationStep {
    while (this.#ids === undefined) this.#step();
    return this.#give();
  }

  dispose(): void {
    abandoned?.unregister(this);
    this.#memory.dispose();
  }
}
