// A model in the core of this thread.

import { modelOutputs, poolings } from '../../generated/tables.js';
import * as wire from '../../generated/wire.js';
import { CoreObject } from '../../runtime/core_object.js';
import { call, type Operands, type Runtime } from '../../runtime/operands.js';
import { namesOf } from '../../runtime/options.js';
import type { ModelInfo } from '../../types/models.js';
import type { Extents, Int32, Operand } from '../../types/wire.js';
import type { GenerationSettings, ModelEngine, PassCall, PassResult } from './engine.js';
import { CoreGeneration, type SessionMemory } from './generation.js';
import { captureSpan, editSpan, inputsOf } from './lists.js';

function readInfo(runtime: Runtime, handle: Int32): ModelInfo {
  runtime.raw.modelInfo(handle);
  const { output, pooling, endIds, ...rest } = wire.readModelInfo(runtime.args.results());
  return {
    ...rest,
    output: namesOf(modelOutputs)[output] as ModelInfo['output'],
    pooling: namesOf(poolings)[pooling] as ModelInfo['pooling'],
    endIds: [...endIds],
  };
}

export class CoreModel extends CoreObject implements ModelEngine {
  readonly info: ModelInfo;
  readonly workers = 0;
  /** They share the weights, which are freed with the last of them. */
  readonly #generations = new Set<SessionMemory>();

  constructor(runtime: Runtime, handle: Int32) {
    const { raw, heap } = runtime;
    const info = readInfo(runtime, handle);
    heap.count(info.weightBytes);
    super(runtime, handle, { argument: 'model', noun: 'a model' }, {
      what: () => `a model of ${info.weightBytes} bytes`,
      free: () => {
        heap.count(-info.weightBytes);
        if (!raw.dead) raw.modelRelease(handle);
      },
    });
    this.info = info;
  }

  run({ batch, headScales, what, outputs }: PassCall): PassResult {
    this.assertLive();
    const { runtime } = this;
    const { raw, args } = runtime;
    return call(runtime, (operands) => {
      const inputs = inputsOf(runtime, operands, this.info, batch, headScales);
      const edits = editSpan(runtime, operands, batch.edits);
      const made = outputs.map((shape) => shape && output(operands, shape));
      const [first, last, logits, pooler, ...captured] = made;
      if (what.kind === 'embed') {
        wire.modelEmbed(args, inputs, what.pooling, what.normalize, first);
        operands.run(() => raw.modelEmbed(this.handle));
      } else if (what.kind === 'attentions') {
        wire.modelAttentions(args, inputs, edits, what.layer, what.head, first);
        operands.run(() => raw.modelAttentions(this.handle));
      } else {
        const captures = captureSpan(runtime, operands, what.captures ?? [], captured as Operand[]);
        wire.modelForward(args, inputs, edits, captures, first, last, logits, pooler);
        operands.run(() => raw.modelForward(this.handle));
      }
      return made.map((each) => each && copied(runtime, each));
    });
  }

  /** Runs a call of the core with the model's handle. */
  within<R>(body: (operands: Operands, runtime: Runtime, handle: Int32) => R): R {
    const { handle, runtime } = this;
    return call(runtime, (operands) => body(operands, runtime, handle));
  }

  generation(settings: GenerationSettings): CoreGeneration {
    return new CoreGeneration(this.runtime, this.handle, this.info, settings, this.#generations);
  }

  override dispose(): void {
    for (const each of this.#generations) each.dispose();
    super.dispose();
  }
}

/** Memory for an output until the end of the call. */
export function output(operands: Operands, shape: Extents): Operand<'f32'> {
  const { address } = operands.temporary(shape.reduce((product: number, extent) => product * extent, 4), 'outputs');
  return { address, dtype: 'f32', shape };
}

export function copied({ heap }: Runtime, { address, shape }: Operand<'f32'>): Float32Array<ArrayBuffer> {
  const length = shape.reduce((product: number, extent) => product * extent, 1);
  return new Float32Array(heap.buffer as ArrayBuffer, address, length).slice();
}
