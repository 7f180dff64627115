// The inputs and outputs of one call: temporary copies are freed when it ends, new outputs when it fails.

import type { Arguments, Operand } from './arguments.js';
import { MultiheadError } from './errors.js';
import { bytesPerElement, outOfMemory, type Block, type Heap } from './memory.js';
import { Status, type RawModule, type SpanArg } from './raw.js';
import type { ScopeStack } from './scope.js';
import {
  checkData,
  checkShape,
  describe,
  formatShape,
  maxExtent,
  sameShape,
  typedArrayName,
  WasmTensor,
  type Ranks,
} from './tensor.js';
import type { DataOf, DType, Shape } from './types.js';

/** What every operation works with: one loaded module. */
export interface Runtime {
  readonly raw: RawModule;
  readonly args: Arguments;
  readonly heap: Heap;
  readonly scopes: ScopeStack;
}

/** What an operation was given, when it outlives the call. */
export interface KeptInputs {
  readonly copies: readonly Block[];
  readonly tensors: readonly NamedTensor[];
}

/** A tensor that is an input, and which. */
interface NamedTensor {
  readonly tensor: WasmTensor;
  readonly name: string;
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

export const noSpan: SpanArg = { address: 0, length: 0 };

const spanArrays = { f32: 'a Float32Array', i32: 'an Int32Array' } as const;
type SpanType = keyof typeof spanArrays;

export class Operands {
  readonly #runtime: Runtime;
  #temporaries: Block[] = [];
  readonly #inputs: NamedTensor[] = [];
  #outputs: WasmTensor[] = [];

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  input(value: unknown, dtypes: readonly DType[], argument: string, ranks?: Ranks): Operand {
    const { heap } = this.#runtime;
    const like = checkTensorLike(value, dtypes, argument, ranks);
    const { dtype, shape } = like;
    checkExtents(shape, argument);
    if (value instanceof WasmTensor && value.livesIn(heap)) {
      this.#inputs.push({ tensor: value, name: argument });
      return value;
    }
    const block = heap.allocateCopy(dtype, like.data, argument);
    this.#temporaries.push(block);
    return { address: block.address, dtype, shape };
  }

  optional(value: unknown, dtypes: readonly DType[], argument: string): Operand | undefined {
    return value === undefined ? undefined : this.input(value, dtypes, argument);
  }

  /** Numbers in a typed array without a shape. */
  span(value: unknown, type: SpanType, argument: string): SpanArg {
    const wanted = spanArrays[type];
    if (typedArrayName(value) !== wanted.split(' ')[1]) {
      throw new MultiheadError('E_OPTION', {
        argument,
        expected: wanted,
        got: describe(value),
      });
    }
    const numbers = value as Float32Array | Int32Array;
    const block = this.#runtime.heap.allocateCopy(type, numbers, argument);
    this.#temporaries.push(block);
    return { address: block.address, length: numbers.length };
  }

  /** As span(). To the core, which checks lengths, no values are "not given": `count` of them are meant. */
  optionalSpan(value: unknown, type: SpanType, argument: string, count: number): SpanArg {
    if (value === undefined) return noSpan;
    const span = this.span(value, type, argument);
    if (span.length > 0 || count === 0) return span;
    throw new MultiheadError('E_SHAPE', {
      argument,
      expected: `${count} values`,
      got: '0 values',
    });
  }

  /** The paper's slopes of ALiBi. */
  alibiSlopes(heads: number): SpanArg {
    const { address } = this.temporary(heads * bytesPerElement('f32'), 'alibi');
    this.#runtime.raw.alibiSlopes(address, heads);
    return { address, length: heads };
  }

  /** Memory for the length of the call, not cleared. */
  temporary(bytes: number, argument: string): Block {
    const block = this.#runtime.heap.allocate(bytes, argument);
    this.#temporaries.push(block);
    return block;
  }

  /** A new tensor, not cleared, or the caller's own. Ask for outputs after the inputs. */
  output<D extends DType>(
    shape: Shape,
    dtype: D,
    argument: string,
    given?: unknown,
  ): WasmTensor<D> {
    const { heap } = this.#runtime;
    if (given === undefined) {
      const tensor = WasmTensor.allocate(heap, dtype, shape, argument);
      this.#outputs.push(tensor);
      return tensor;
    }
    const tensor = this.writable(given, dtype, argument);
    if (!sameShape(tensor.shape, shape)) {
      throw new MultiheadError('E_SHAPE', {
        argument,
        expected: formatShape(shape),
        got: formatShape(tensor.shape),
      });
    }
    return tensor;
  }

  /** A tensor of the caller's, to write to. */
  writable<D extends DType>(given: unknown, dtype: D, argument: string): WasmTensor<D> {
    const tensor = ownTensor(given, this.#runtime.heap, dtype, argument);
    checkNotAnInput(tensor, this.#inputs, argument);
    return tensor;
  }

  /** Throws what a status code other than ok stands for. */
  check(status: number): void {
    checkStatus(this.#runtime, status);
  }

  /** A handle of the core's; throws what minus a status code stands for. */
  checkHandle(handle: number): number {
    if (handle <= 0) this.check(-handle);
    return handle;
  }

  /** What the call was given stays for later ones: the copies that it made, and the tensors by name. */
  keepInputs(): KeptInputs {
    const kept = { copies: this.#temporaries, tensors: this.#inputs };
    this.#temporaries = [];
    return kept;
  }

  /** The call has succeeded: its outputs are the caller's now, or the scope's. */
  keepOutputs(): void {
    for (const tensor of this.#outputs) this.#runtime.scopes.track(tensor);
    this.#outputs = [];
  }

  release(): void {
    for (const block of this.#temporaries) this.#runtime.heap.release(block);
    for (const tensor of this.#outputs) tensor.dispose();
  }
}

/** Throws what a status code of the core's other than ok stands for. */
export function checkStatus({ raw, heap }: Runtime, status: number): void {
  if (status === Status.ok) return;
  const argument = optionName(raw.errorArgument());
  // Parameters have PyTorch's names here too.
  const inOurWords = argument === 'stateDict' ? (text: string) => text : inJavaScript;
  const expected = inOurWords(raw.errorExpected());
  if (status === Status.memory) {
    throw outOfMemory(argument, expected, heap.buffer.byteLength);
  }
  throw new MultiheadError(status === Status.shape ? 'E_SHAPE' : 'E_OPTION', {
    argument,
    expected,
    got: inOurWords(raw.errorGot()),
  });
}

/** C++ names to JavaScript's: "num_heads" to "numHeads". */
export const camelCase = (name: string): string =>
  name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());

/** Arguments that this package calls otherwise than the core. */
const renamed: Readonly<Record<string, string>> = {
  alibi_slopes: 'alibi',
  'window.alignment': 'window.align',
  head_scales: 'heads.scales',
  temperature: 'heads.temperature',
  out_a: 'a.out',
  lse_a: 'a.lse',
  out_b: 'b.out',
  lse_b: 'b.lse',
};
const optionName = (name: string): string => renamed[name] ?? camelCase(name);

/** A sentence of the core with names as JavaScript has them: "kv_lengths", not the extents "N_k" and "d_rope". */
const inJavaScript = (text: string): string =>
  text.replace(/\b(?!d_)[a-z]+(?:_[a-z]{2,})+\b/g, optionName);

/** A live tensor of this memory, without a copy of anything else; throws `E_OPTION`, `E_DISPOSED`. */
export function ownTensor<D extends DType>(
  given: unknown,
  heap: Heap,
  dtype: D,
  argument: string,
): WasmTensor<D> {
  if (!(given instanceof WasmTensor) || !given.livesIn(heap)) {
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: 'a tensor made by the same load()',
      got: given instanceof WasmTensor ? 'one of another' : describe(given),
    });
  }
  given.assertLive(argument);
  if (given.dtype !== dtype) throw wrongDtype(argument, [dtype], given.dtype);
  return given as WasmTensor<D>;
}

/** Throws `E_OPTION`. */
export function checkNotAnInput(
  tensor: unknown,
  inputs: readonly NamedTensor[],
  argument: string,
): void {
  for (const input of inputs) if (tensor === input.tensor) throw alsoAnInput(argument, input.name);
}

export const alsoAnInput = (argument: string, input: string): MultiheadError =>
  new MultiheadError('E_OPTION', {
    argument,
    expected: 'a tensor that is not an input of the call',
    got: `the same as ${input}`,
  });

/** Throws `E_SHAPE`. Some() and iterators are slow on the frozen shapes of tensors: with them a call took 0.5 µs more. */
function checkExtents(shape: Shape, argument: string): void {
  for (let axis = 0; axis < shape.length; axis += 1) {
    if ((shape[axis] as number) <= maxExtent) continue;
    throw new MultiheadError('E_SHAPE', {
      argument,
      expected: 'extents below 2³¹',
      got: formatShape(shape),
    });
  }
}

/** How many axes "(B, H_q, N_q, d_k)" has. */
const rankOf = new Map<string, number>();

/** Throws `E_SHAPE` unless there are as many axes as `axes` has letters. */
export function checkRank({ shape }: { shape: Shape }, axes: string, argument: string): void {
  let rank = rankOf.get(axes);
  if (rank === undefined) rankOf.set(axes, (rank = axes.split(',').length));
  if (shape.length === rank) return;
  throw new MultiheadError('E_SHAPE', { argument, expected: axes, got: formatShape(shape) });
}

/** Throws `E_DISPOSED`, `E_OPTION` for another type, `E_SHAPE`. */
export function checkTensorLike<D extends DType>(
  value: unknown,
  dtypes: readonly D[],
  argument: string,
  ranks?: Ranks,
): { shape: Shape; dtype: D; data: DataOf<D> } {
  if (value instanceof WasmTensor) {
    value.assertLive(argument);
    if (!dtypes.includes(value.dtype as D)) throw wrongDtype(argument, dtypes, value.dtype);
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
  const shape = checkShape(value.shape, argument, ranks);
  const stated = 'dtype' in value ? value.dtype : undefined;
  return { shape, ...checkData(value.data, shape, dtypes, argument, stated) };
}

function wrongDtype(argument: string, wanted: readonly DType[], got: DType): MultiheadError {
  return new MultiheadError('E_OPTION', {
    argument,
    expected: `a tensor of dtype ${wanted.map((dtype) => `"${dtype}"`).join(' or ')}`,
    got: `"${got}"`,
  });
}
