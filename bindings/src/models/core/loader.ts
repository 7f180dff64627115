// Takes the weights of a model into the core of this thread.

import { weightTypes } from '../../generated/tables.js';
import * as wire from '../../generated/wire.js';
import { MultiheadError } from '../../runtime/errors.js';
import { type Block, outOfMemory } from '../../runtime/memory.js';
import { call, checkStatus, type Runtime } from '../../runtime/operands.js';
import type { ModelWeights } from '../../types/models.js';
import type { Int32, Int64, Uint32 } from '../../types/wire.js';
import type { LoaderInput, WeightLoader } from './engine.js';
import { numberSpan, textSpan } from './lists.js';
import { CoreModel } from './model.js';

/** Most bytes that a loader takes at a time. */
export const pieceBytes = 4 * 2 ** 20;

/** The core's memory cannot grow further: the linker's MAXIMUM_MEMORY. */
const mostMemory = 4095 * 2 ** 20;

const typeCode = (weights: ModelWeights | undefined): Int64 => (weights === undefined ? -1 : (weightTypes[weights] as Int64));

/** Makes a loader in the core. Throws `E_OPTION`, `E_FORMAT`. */
function makeLoader(runtime: Runtime, { settings, tensors, weights, embeddingWeights, images }: LoaderInput): Int32 {
  return call(runtime, (operands) => {
    const texts = textSpan(operands, runtime, settings.texts, 'config.json');
    const numbers = numberSpan(operands, runtime, settings.numbers, 'config.json');
    const names = textSpan(operands, runtime, tensors.texts, 'safetensors');
    const shapes = numberSpan(operands, runtime, tensors.numbers, 'safetensors');
    wire.modelLoader(runtime.args, texts, numbers, names, shapes, typeCode(weights), typeCode(embeddingWeights), images);
    return operands.make((raw) => raw.modelLoaderCreate());
  });
}

/** Throws `E_MEMORY` if weights of this size do not fit, with the type that would. */
function checkFits(runtime: Runtime, bytes: number, smaller: (left: number) => string | undefined): void {
  const left = mostMemory - runtime.heap.info().bytes - 2 * pieceBytes;
  if (bytes <= left) return;
  const advice = smaller(left);
  const asked = `${(bytes / 2 ** 20).toFixed(0)} MiB for the weights`;
  const error = outOfMemory('weights', asked, mostMemory);
  throw new MultiheadError('E_MEMORY', {
    argument: 'weights',
    expected: asked,
    got: error.got,
    message: `weights: the model needs ${asked}, and WebAssembly has at most ${mostMemory / 2 ** 20} MiB${
      advice === undefined ? '' : `; weights: '${advice}' would fit`
    }`,
  });
}

export class CoreLoader implements WeightLoader {
  readonly needed: Int32Array;
  readonly #runtime: Runtime;
  readonly #loader: Int32;
  readonly #keeps: boolean;
  #piece: Block = { address: 0, bytes: 0 };

  /** `keeps`: false if the weights do not stay in the core. */
  constructor(runtime: Runtime, input: LoaderInput, keeps = true) {
    this.#keeps = keeps;
    const { raw, args, heap } = runtime;
    const neededBy = (loader: Int32) => {
      raw.modelLoaderNeeded(loader);
      return wire.readNeededTensors(args.results());
    };
    this.#runtime = runtime;
    this.#loader = makeLoader(runtime, input);
    try {
      const { tensors, bytes } = neededBy(this.#loader);
      // The result lies in the core's memory.
      this.needed = tensors.slice();
      checkFits(runtime, keeps ? bytes : 0, (left) =>
        (['f16', 'int8', 'int4'] as const).find((weights) => {
          const other = makeLoader(runtime, { ...input, weights });
          const less = neededBy(other).bytes;
          raw.modelLoaderRelease(other);
          return less <= left;
        }),
      );
      this.#piece = heap.allocate(pieceBytes, 'weights');
    } catch (error) {
      this.dispose();
      throw error;
    }
  }

  get handle(): Int32 {
    return this.#loader;
  }

  give(tensor: number, bytes: Uint8Array): void {
    const { raw, args, heap } = this.#runtime;
    raw.assertAlive();
    const { address } = this.#piece;
    new Uint8Array(heap.buffer as ArrayBuffer, address, bytes.length).set(bytes);
    wire.modelBytes(args, { address, length: bytes.length as Uint32 });
    args.close();
    checkStatus(this.#runtime, raw.modelLoaderGive(this.#loader, tensor as Int32));
  }

  finish(): CoreModel {
    const handle = call(this.#runtime, (operands) => {
      this.#runtime.args.begin();
      return operands.make((raw) => raw.modelLoaderFinish(this.#loader));
    });
    return new CoreModel(this.#runtime, handle, this.#keeps ? undefined : []);
  }

  dispose(): void {
    const { raw, heap } = this.#runtime;
    heap.release(this.#piece);
    if (!raw.dead) raw.modelLoaderRelease(this.#loader);
  }
}
