// A model in the core of this thread.

import { modelOutputs, poolings } from '../../generated/tables.js';
import * as wire from '../../generated/wire.js';
import { CoreObject } from '../../runtime/core_object.js';
import { call, noSpan, type Operands, type Runtime } from '../../runtime/operands.js';
import { namesOf } from '../../runtime/options.js';
import type { ModelInfo } from '../../types/models.js';
import type { Extents, Int32, Operand, Span, Uint32 } from '../../types/wire.js';
import type { GenerationSettings, ModelEngine, PassCall, PassResult } from './engine.js';
import { CoreGeneration, type SessionMemory } from './generation.js';

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
      const inputs: wire.ModelInputs = {
        ids: ints(operands, batch.ids, 'input'),
        batch: batch.batch,
        mask: batch.mask === undefined ? noSpan : bytes(runtime, operands, batch.mask),
        tokenTypes: batch.tokenTypes === undefined ? noSpan : ints(operands, batch.tokenTypes, 'tokenTypes'),
        pixels: batch.pixels === undefined ? noSpan : operands.span(batch.pixels, 'f32', 'pixels'),
        headScales: operands.optionalSpan(headScales, 'f32', 'headScales', this.info.numLayers * this.info.numHeads),
      };
      const made = outputs.map((shape) => shape && output(operands, shape));
      const [first, last, logits, pooler] = made;
      if (what.kind === 'embed') {
        wire.modelEmbed(args, inputs, what.pooling, what.normalize, first);
        operands.run(() => raw.modelEmbed(this.handle));
      } else if (what.kind === 'attentions') {
        wire.modelAttentions(args, inputs, what.layer, what.head, first);
        operands.run(() => raw.modelAttentions(this.handle));
      } else {
        wire.modelForward(args, inputs, first, last, logits, pooler);
        operands.run(() => raw.modelForward(this.handle));
      }
      return made.map((each) => each && copied(runtime, each));
    });
  }

  generation(settings: GenerationSettings): CoreGeneration {
    return new CoreGeneration(this.runtime, this.handle, this.info, settings, this.#generations);
  }

  override dispose(): void {
    for (const each of this.#generations) each.dispose();
    super.dispose();
  }
}

const ints = (operands: Operands, ids: Int32Array, argument: string): Span<'i32'> =>
  ids.length === 0 ? noSpan : operands.span(ids, 'i32', argument);

function bytes({ heap }: Runtime, operands: Operands, values: Uint8Array): Span<'bool'> {
  const { address } = operands.temporary(values.length, 'mask');
  new Uint8Array(heap.buffer as ArrayBuffer, address, values.length).set(values);
  return { address, length: values.length as Uint32 };
}

/** Memory for an output until the end of the call. */
function output(operands: Operands, shape: Extents): Operand<'f32'> {
  const { address } = operands.temporary(shape.reduce((product: number, extent) => product * extent, 4), 'outputs');
  return { address, dtype: 'f32', shape };
}

function copied({ heap }: Runtime, { address, shape }: Operand<'f32'>): Float32Array<ArrayBuffer> {
  const length = shape.reduce((product: number, extent) => product * extent, 1);
  return new Float32Array(heap.buffer as ArrayBuffer, address, length).slice();
}
