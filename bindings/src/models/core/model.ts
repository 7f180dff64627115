// A model in the core of this thread.

import type { PartName } from '../../generated/parts.js';
import { dtypes, earlyStoppings, modelOutputs, poolings } from '../../generated/tables.js';
import * as wire from '../../generated/wire.js';
import { CoreObject } from '../../runtime/core_object.js';
import { optionError } from '../../runtime/errors.js';
import { onJavaScriptHeap, SharedParameters } from '../../runtime/memory.js';
import { call, type Operands, readListed, type Runtime } from '../../runtime/operands.js';
import { namesOf } from '../../runtime/options.js';
import { elements } from '../../runtime/shape.js';
import type { ModelInfo } from '../../types/models.js';
import type { FloatDType } from '../../types/tensor.js';
import type { Extents, Int32, Operand } from '../../types/wire.js';
import type { ModelEngine, PassCall, PassResult } from './engine.js';
import { captureSpan, editSpan, inputsOf } from './lists.js';
import { rulesOf } from './rules.js';

type OwnInfo = Omit<ModelInfo, 'encoder'> & { readonly hasEncoder: boolean };

function readInfo(runtime: Runtime, handle: Int32): OwnInfo {
  runtime.raw.modelInfo(handle);
  const { output, pooling, endIds, ...rest } = wire.readModelInfo(runtime.args.results());
  const info = {
    ...rest,
    output: namesOf(modelOutputs)[output] as ModelInfo['output'],
    pooling: namesOf(poolings)[pooling] as ModelInfo['pooling'],
    endIds: [...endIds],
  };
  runtime.raw.modelRules(handle);
  const { numbers, earlyStopping: stopping, ...defaults } = wire.readModelRules(runtime.args.results());
  const [start = -1, ...rules] = numbers;
  const earlyStopping = stopping === earlyStoppings.never ? ('never' as const) : stopping === earlyStoppings.firstFull;
  return { ...info, decoderStart: start < 0 ? undefined : start, rules: rulesOf(rules), generation: { ...defaults, earlyStopping } };
}

export class CoreModel extends CoreObject implements ModelEngine {
  readonly info: ModelInfo;
  readonly encoder: CoreModel | undefined;
  readonly workers = 0;
  readonly device = 'cpu';
  /** The memory of its weights. */
  readonly weights: readonly SharedParameters[];
  /** They share the weights, which are freed with the last of them. */
  readonly generations = new Set<{ dispose(): void }>();

  /** `weights`: those of a model that shares some with others. */
  constructor(runtime: Runtime, handle: Int32, weights?: readonly SharedParameters[]) {
    const { raw, heap } = runtime;
    const { hasEncoder, ...info } = readInfo(runtime, handle);
    const own = (weights ?? [new SharedParameters(heap, info.weightBytes)]).map((each) => each.join());
    super(
      runtime,
      handle,
      { argument: 'model', noun: 'a model' },
      {
        what: () => `a model of ${info.weightBytes} bytes`,
        free: () => {
          for (const each of own) each.leave();
          if (!raw.dead) raw.modelRelease(handle);
        },
      },
    );
    this.weights = own;
    this.encoder = hasEncoder ? new CoreModel(runtime, encoderOf(runtime, handle), own) : undefined;
    this.info = { ...info, encoder: this.encoder?.info };
  }

  run({ inEncoder, ...whole }: PassCall): PassResult {
    this.assertLive();
    if (inEncoder && this.encoder !== undefined) return this.encoder.run(whole);
    const { batch, headScales, what, outputs } = whole;
    const { runtime } = this;
    const { args } = runtime;
    return call(runtime, (operands) => {
      const inputs = inputsOf(runtime, operands, this.info, batch, headScales);
      const edits = editSpan(runtime, operands, batch.edits);
      const sourceEdits = editSpan(runtime, operands, batch.sourceEdits);
      const made = outputs.map((shape) => shape && output(operands, shape));
      const [first, last, logits, pooler, source, ...captured] = made;
      if (what.kind === 'embed') {
        wire.modelEmbed(args, inputs, what.pooling, what.normalize, first);
        operands.run((raw) => raw.modelEmbed(this.handle));
      } else if (what.kind === 'attentions') {
        wire.modelAttentions(args, inputs, edits, sourceEdits, what.cross, what.layer, what.head, first);
        operands.run((raw) => raw.modelAttentions(this.handle));
      } else {
        const captures = captureSpan(runtime, operands, what.captures ?? [], captured as Operand[]);
        wire.modelForward(args, inputs, edits, sourceEdits, captures, first, last, logits, pooler, source);
        operands.run((raw) => raw.modelForward(this.handle));
      }
      return made.map((each) => each && copied(runtime, each));
    });
  }

  /** Runs a call of the core with the model's handle. */
  within<R>(body: (operands: Operands, runtime: Runtime, handle: Int32) => R): R {
    const { handle, runtime } = this;
    return call(runtime, (operands) => body(operands, runtime, handle));
  }

  /** The core that it lives in. */
  get core(): Runtime {
    return this.runtime;
  }

  async load(part: PartName): Promise<void> {
    await this.runtime.loadPart?.(part);
    this.assertLive();
  }

  /** The tensors of the model's files; with `areAsInMemory` in their types and shapes in memory: rows of int8 and int4 are bytes. */
  tensors(areAsInMemory = false) {
    return this.within((operands, runtime, handle) => {
      operands.run((raw) => raw.modelTensors(handle, areAsInMemory));
      return readListed(runtime, ({ name, shape, dtype, address }) => ({
        ...{ name, shape: shape as readonly number[] as Extents, address },
        dtype: namesOf(dtypes)[dtype] as FloatDType | 'int8',
      }));
    });
  }

  /** The bytes of rows of int8 or int4. */
  rows({ name, address, shape }: { readonly name: string; readonly address: number; readonly shape: Extents }): Uint8Array<ArrayBuffer> {
    return this.within((_, { heap }) => onJavaScriptHeap(elements(shape), name, () => new Uint8Array(heap.buffer, address, elements(shape)).slice()));
  }

  /** The numbers of one of them. */
  tensor(index: number, shape: Extents): Float32Array<ArrayBuffer> {
    return this.within((operands, runtime, handle) => {
      const made = output(operands, shape);
      wire.storedTensor(runtime.args, made);
      operands.run((raw) => raw.modelTensor(handle, index as Int32));
      return copied(runtime, made);
    });
  }

  override dispose(): void {
    for (const each of this.generations) each.dispose();
    this.encoder?.dispose();
    super.dispose();
  }
}

/** The encoder of a model, as one by itself. */
const encoderOf = (runtime: Runtime, handle: Int32): Int32 =>
  call(runtime, (operands) => {
    runtime.args.begin();
    return operands.make((raw) => raw.modelEncoder(handle));
  });

/** The model of an engine on the calling thread. Throws `E_OPTION`, `E_DISPOSED`, `E_FATAL`, `E_WORKER`. */
export function onThisThread(engine: ModelEngine): CoreModel {
  engine.assertLive();
  // One of device 'auto' has the weights on both sides.
  const { cpu = engine } = engine;
  if (cpu instanceof CoreModel) return cpu;
  const [option, where] = engine.workers > 0 ? ['workers', `in ${engine.workers} workers`] : ['device', 'on a GPU'];
  throw optionError('model', `one that was opened without the option ${option}`, `one ${where}`);
}

/** Memory for an output until the end of the call. */
export function output(operands: Operands, shape: Extents): Operand<'f32'> {
  const { address } = operands.temporary(4 * elements(shape), 'outputs');
  return { address, dtype: 'f32', shape };
}

export const copied = ({ heap }: Runtime, { address, shape }: Operand<'f32'>): Float32Array<ArrayBuffer> =>
  new Float32Array(heap.buffer as ArrayBuffer, address, elements(shape)).slice();
