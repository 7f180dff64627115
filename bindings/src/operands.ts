// The inputs and outputs of one call: temporary copies are freed when it ends, new outputs when it fails.

import { MultiheadError } from './errors.js';
import { outOfMemory, type Block, type Heap } from './memory.js';
import { Status, type RawModule, type TensorArg } from './raw.js';
import type { ScopeStack } from './scope.js';
import {
  checkData,
  checkShape,
  describe,
  formatShape,
  maxExtent,
  notGiven,
  tensorArg,
  WasmTensor,
} from './tensor.js';
import type { DataOf, DType, Shape } from './types.js';

/** What every operation works with: one loaded module. */
export interface Runtime {
  readonly raw: RawModule;
  readonly heap: Heap;
  readonly scopes: ScopeStack;
}

/** An input: where it lies and how it is shaped. */
export interface Operand {
  readonly shape: Shape;
  /** `shape` may regroup the axes of a tensor without gaps. */
  arg(shape?: Shape): TensorArg;
}

/** Runs one call. What `body` has allocated through its operands does not outlive a failure. */
export function call<R>(runtime: Runtime, body: (operands: Operands) => R): R {
  const operands = new Operands(runtime);
  try {
    const result = body(operands);
    operands.keepOutputs();
    return result;
  } finally {
    operands.release();
  }
}

export class Operands {
  readonly #runtime: Runtime;
  readonly #copies: Block[] = [];
  readonly #inputs = new Map<object, string>();
  #outputs: WasmTensor<'f32'>[] = [];

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  input(value: unknown, dtype: DType, argument: string): Operand {
    const { heap } = this.#runtime;
    const { data, shape } = checkTensorLike(value, dtype, argument);
    if (shape.some((extent) => extent > maxExtent)) {
      throw new MultiheadError('E_SHAPE', {
        argument,
        expected: 'extents below 2³¹',
        got: formatShape(shape),
      });
    }
    if (value instanceof WasmTensor && value.livesIn(heap)) {
      this.#inputs.set(value, argument);
      return value;
    }
    const block = heap.allocateCopy(dtype, data, argument);
    this.#copies.push(block);
    return { shape, arg: (regrouped = shape) => tensorArg(block.address, regrouped) };
  }

  optional(value: unknown, dtype: DType, argument: string): TensorArg {
    return value === undefined ? notGiven : this.input(value, dtype, argument).arg();
  }

  /** A new tensor, not cleared, or the caller's own. Ask for outputs after the inputs. */
  output(shape: Shape, argument: string, given?: unknown): WasmTensor<'f32'> {
    const { heap } = this.#runtime;
    if (given === undefined) {
      const tensor = WasmTensor.allocate(heap, 'f32', shape, argument);
      this.#outputs.push(tensor);
      return tensor;
    }
    if (!(given instanceof WasmTensor) || !given.livesIn(heap)) {
      throw new MultiheadError('E_OPTION', {
        argument,
        expected: 'a tensor made by the same load()',
        got: given instanceof WasmTensor ? 'one of another' : describe(given),
      });
    }
    given.assertLive(argument);
    if (given.dtype !== 'f32') throw wrongDtype(argument, 'f32', given.dtype);
    const input = this.#inputs.get(given);
    if (input !== undefined) {
      throw new MultiheadError('E_OPTION', {
        argument,
        expected: 'a tensor that is not an input of the call',
        got: `the same as ${input}`,
      });
    }
    if (formatShape(given.shape) !== formatShape(shape)) {
      throw new MultiheadError('E_SHAPE', {
        argument,
        expected: formatShape(shape),
        got: formatShape(given.shape),
      });
    }
    return given as WasmTensor<'f32'>;
  }

  /** Throws what a status code other than ok stands for. */
  check(status: number): void {
    if (status === Status.ok) return;
    const { raw, heap } = this.#runtime;
    const { argument, expected, got } = raw.lastError();
    const name = camelCase(argument);
    if (status === Status.memory) {
      throw outOfMemory(name, expected, heap.buffer.byteLength);
    }
    throw new MultiheadError(status === Status.shape ? 'E_SHAPE' : 'E_OPTION', {
      argument: name,
      expected,
      got,
    });
  }

  /** The call has succeeded: its outputs are the caller's now, or the scope's. */
  keepOutputs(): void {
    for (const tensor of this.#outputs) this.#runtime.scopes.track(tensor);
    this.#outputs = [];
  }

  release(): void {
    for (const block of this.#copies) this.#runtime.heap.release(block);
    for (const tensor of this.#outputs) tensor.dispose();
  }
}

/** C++ names to JavaScript's: "num_heads" to "numHeads". */
export const camelCase = (name: string): string =>
  name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** Throws `E_SHAPE` unless there are as many axes as `axes` has letters. */
export function checkRank({ shape }: Operand, axes: string, argument: string): void {
  if (shape.length === axes.split(',').length) return;
  throw new MultiheadError('E_SHAPE', { argument, expected: axes, got: formatShape(shape) });
}

/** Throws `E_DISPOSED`, `E_OPTION` for another type, `E_SHAPE`. */
export function checkTensorLike<D extends DType>(
  value: unknown,
  dtype: D,
  argument: string,
): { shape: Shape; data: DataOf<D> } {
  if (value instanceof WasmTensor) {
    value.assertLive(argument);
    if (value.dtype !== dtype) throw wrongDtype(argument, dtype, value.dtype);
    return value as WasmTensor<D>;
  }
  if (typeof value !== 'object' || value === null || !('data' in value && 'shape' in value)) {
    const typed = ArrayBuffer.isView(value) ? ', which has no shape' : '';
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: 'a tensor or { data: typed array, shape }',
      got: describe(value) + typed,
    });
  }
  const shape = checkShape(value.shape, argument);
  return { shape, data: checkData(value.data, shape, [dtype], argument).data };
}

function wrongDtype(argument: string, wanted: DType, got: DType): MultiheadError {
  return new MultiheadError('E_OPTION', {
    argument,
    expected: `a tensor of dtype "${wanted}"`,
    got: `"${got}"`,
  });
}
