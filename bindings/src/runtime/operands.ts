// The inputs and outputs of one call. Temporary copies are freed when the call ends, new outputs if it fails.

import type { PartName } from '../generated/parts.js';
import { callStatus, type ErrorTables } from '../generated/tables.js';
import { type ListedTensor, readCoreError, readListedTensor } from '../generated/wire.js';
import type { DataOf, DisposableResult, DType, Shape, Tensor } from '../types/index.js';
import type { Count, Extents, Int32, Operand, Span } from '../types/wire.js';
import { type Arguments, otherArguments } from './arguments.js';
import { MultiheadError, optionError, shapeError } from './errors.js';
import type { GuardedModule } from './guard.js';
import { type Block, bytesPerElement, type Heap, outOfMemory, spanOf } from './memory.js';
import { sentencesOf } from './messages.js';
import type { ScopeStack } from './scope.js';
import { checkExtents, formatShape, rankAdvice, type Ranks, sameShape } from './shape.js';
import { checkData, checkShape, coreOf, describe, describeData, isProxyOfTensor, type TensorCore, WasmTensor } from './tensor.js';
import { typedArrayName } from './typed_arrays.js';

/** One loaded module, which every operation gets. */
export interface Runtime {
  readonly raw: GuardedModule;
  readonly args: Arguments;
  readonly heap: Heap;
  readonly scopes: ScopeStack;
  /** Error texts that multihead/core does not contain. */
  readonly moreTables: ErrorTables[];
  /** multihead/models: loads a part, once. Throws `E_LOAD`. */
  readonly loadPart?: (part: PartName) => Promise<void>;
}

/** Inputs that a prepared operation keeps for later calls. */
export interface KeptInputs {
  readonly copies: readonly Block[];
  readonly tensors: readonly NamedTensor[];
}

/** A tensor of a call, with the name of its argument. */
export interface NamedTensor {
  readonly tensor: TensorCore;
  readonly name: string;
}

/** Runs one call. If `body` throws, everything allocated through its operands is freed. */
export function call<R>(runtime: Runtime, body: (operands: Operands) => R): R {
  runtime.raw.assertAlive();
  return callWith(new Operands(runtime), body);
}

/** As call(), with new operands of any device. */
export function callWith<O extends Operands, R>(operands: O, body: (operands: O) => R): R {
  try {
    const result = body(operands);
    operands.keepOutputs();
    return result;
  } finally {
    operands.release();
  }
}

export const noSpan: Span<never> = { address: 0, length: 0 };

const spanArrays = { f32: 'a Float32Array', i32: 'an Int32Array' } as const;
type SpanType = keyof typeof spanArrays;

export class Operands {
  readonly #runtime: Runtime;
  #temporaries: Block[] = [];
  readonly #inputs: NamedTensor[] = [];
  readonly #given: NamedTensor[] = [];
  #outputs: WasmTensor[] = [];

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  input<D extends DType>(value: unknown, dtypes: readonly D[], argument: string, ranks?: Ranks): Operand<D> {
    const { heap } = this.#runtime;
    const core = coreOf(value);
    if (core?.heap === heap) {
      checkCore(core, dtypes, argument);
      this.#inputs.push({ tensor: core, name: argument });
      return core;
    }
    const { dtype, shape, data } = checkTensorLike(value, dtypes, argument, ranks);
    const block = heap.allocateCopy(dtype, data, argument);
    this.#temporaries.push(block);
    return { address: block.address, dtype, shape };
  }

  optional<D extends DType>(value: unknown, dtypes: readonly D[], argument: string): Operand<D> | undefined {
    return value === undefined ? undefined : this.input(value, dtypes, argument);
  }

  /** Copies a typed array without a shape to the core. */
  span<E extends SpanType>(value: unknown, type: E, argument: string): Span<E> {
    const wanted = spanArrays[type];
    if (typedArrayName(value) !== wanted.split(' ')[1]) throw optionError(argument, wanted, describeData(value));
    const block = this.#runtime.heap.allocateCopy(type, value as Float32Array | Int32Array, argument);
    this.#temporaries.push(block);
    return spanOf(block, type);
  }

  /**
   * Like span(), but returns noSpan for undefined. An empty array is an error unless `count` is 0, because the core
   * reads it as "not given".
   */
  optionalSpan<E extends SpanType>(value: unknown, type: E, argument: string, count: number): Span<E> {
    if (value === undefined) return noSpan;
    const span = this.span(value, type, argument);
    if (span.length > 0 || count === 0) return span;
    throw shapeError(argument, `${count} values`, '0 values');
  }

  /** ALiBi's default slopes (arXiv:2108.12409), computed by the core. */
  alibiSlopes(heads: Count): Span<'f32'> {
    const { address } = this.temporary(heads * bytesPerElement('f32'), 'alibi');
    this.#runtime.raw.alibiSlopes(address, heads);
    return { address, length: heads };
  }

  /** Allocates memory until the end of the call, without clearing it. */
  temporary(bytes: number, argument: string): Block {
    const block = this.#runtime.heap.allocate(bytes, argument);
    this.#temporaries.push(block);
    return block;
  }

  /**
   * Returns the tensor `given`, or a new one, not cleared. Call this after all inputs are registered: outputs are
   * compared with them.
   */
  output<D extends DType>(shape: Shape, dtype: D, argument: string, given?: unknown): WasmTensor<D> {
    const { heap } = this.#runtime;
    checkExtents(shape, argument);
    if (given === undefined) {
      const tensor = WasmTensor.allocate(heap, dtype, shape, argument);
      this.#outputs.push(tensor);
      return tensor;
    }
    const core = this.#writable(given, dtype, argument);
    if (!sameShape(core.shape, shape)) throw shapeError(argument, formatShape(shape), formatShape(core.shape));
    return given as WasmTensor<D>;
  }

  /** Registers a tensor of the caller to write to. Throws if it shares memory with another tensor of the call. */
  writable<D extends DType>(given: unknown, dtype: D, argument: string): Operand<D> {
    return this.#writable(given, dtype, argument);
  }

  #writable<D extends DType>(given: unknown, dtype: D, argument: string): TensorCore<D> {
    const core = ownTensor(given, this.#runtime.heap, dtype, argument);
    checkShared(core, this.#inputs, argument);
    checkShared(core, this.#given, argument);
    this.#given.push({ tensor: core, name: argument });
    return core;
  }

  /** The operand of a tensor that output() has returned, or of one of the caller; undefined for any other value. */
  operandOf<D extends DType>(tensor: Tensor<D> | undefined): Operand<D> | undefined {
    return coreOf(tensor as WasmTensor<D> | undefined);
  }

  /** Calls a function of the core that returns a CallStatus; throws the corresponding error. */
  run(call: (raw: Runtime['raw']) => Int32): void {
    this.#start();
    checkStatus(this.#runtime, call(this.#runtime.raw));
  }

  /** Calls a function of the core that returns a handle, or a negated CallStatus; throws the corresponding error. */
  make(call: (raw: Runtime['raw']) => Int32): Int32 {
    this.#start();
    const handle = call(this.#runtime.raw);
    if (handle <= 0) checkStatus(this.#runtime, -handle);
    return handle;
  }

  /** A getter among the arguments may have disposed a tensor, whose memory the core must not touch. */
  #start(): void {
    for (const { tensor, name } of this.#inputs) tensor.assertLive(name);
    for (const { tensor, name } of this.#given) tensor.assertLive(name);
    this.#runtime.args.close();
  }

  /** Keeps the inputs for later calls: copies are not freed when this call ends. */
  keepInputs(): KeptInputs {
    const kept = { copies: this.#temporaries, tensors: this.#inputs };
    this.#temporaries = [];
    return kept;
  }

  /** Lets `using` dispose a result: its [Symbol.dispose]() frees the tensors that the call has made. */
  disposable<R extends object>(result: R): R & DisposableResult {
    const made = this.#outputs;
    const value = (): void => {
      for (const tensor of made) tensor.dispose();
    };
    return Object.defineProperty(result, Symbol.dispose, { value }) as R & DisposableResult;
  }

  /** Call this after success: gives new outputs to the scope, or else to the caller. */
  keepOutputs(): void {
    for (const tensor of this.#outputs) this.#runtime.scopes.track(tensor);
    this.#outputs = [];
  }

  release(): void {
    for (const block of this.#temporaries) this.#runtime.heap.release(block);
    for (const tensor of this.#outputs) tensor.dispose();
  }
}

/** Throws the error of a CallStatus, unless it is ok. */
export function checkStatus({ raw, args, heap, moreTables }: Runtime, status: number): void {
  if (status === callStatus.ok) return;
  if (status === callStatus.otherArguments) throw otherArguments();
  if (status === callStatus.nothingLeft) {
    throw outOfMemory('memory', 'a megabyte for the call itself', heap.buffer.byteLength);
  }
  raw.lastError();
  const error = sentencesOf(readCoreError(args.results()), moreTables);
  if (status === callStatus.memory) throw outOfMemory(error.argument, error.expected, heap.buffer.byteLength);
  const code = status === callStatus.shape ? 'E_SHAPE' : status === callStatus.format ? 'E_FORMAT' : 'E_OPTION';
  throw new MultiheadError(code, error);
}

/** Checks that `given` is a live tensor of this memory; copies nothing. Throws `E_OPTION`, `E_DISPOSED`. */
export function ownTensor<D extends DType>(given: unknown, heap: Heap, dtype: D, argument: string): TensorCore<D> {
  const core = coreOf(given);
  if (core?.heap !== heap) {
    throw optionError(argument, 'a tensor made by the same load()', core === undefined ? describe(given) : 'one of another');
  }
  core.assertLive(argument);
  if (core.dtype !== dtype) throw wrongDtype(argument, [dtype], core.dtype);
  return core as TensorCore<D>;
}

/** Throws `E_OPTION` if the tensor is one of `others`, or a reshape() of one. */
export function checkShared({ storage }: TensorCore, others: readonly NamedTensor[], argument: string): void {
  for (const { tensor, name } of others) {
    if (tensor.storage === storage) throw sharesMemory(argument, name);
  }
}

export const sharesMemory = (argument: string, other: string): MultiheadError =>
  optionError(argument, 'a tensor that shares its memory with no other of the call', `the same as ${other}, or another shape of it`);

/** Regroups the axes of the same numbers. Throws `E_SHAPE` for an extent that the core cannot read. */
export function reshaped<D extends DType>({ address, dtype }: Operand<D>, shape: Shape, argument: string): Operand<D> {
  checkExtents(shape, argument);
  return { address, dtype, shape };
}

/** Number of axes by their names: 4 for "(B, H_q, N_q, d_k)". */
const rankOf = new Map<string, number>();

/** Throws `E_SHAPE` unless the tensor has the axes that `axes` names. */
export function checkRank({ shape }: { shape: Shape }, axes: string, argument: string): void {
  let rank = rankOf.get(axes);
  if (rank === undefined) rankOf.set(axes, (rank = axes.split(',').length));
  if (shape.length === rank) return;
  throw shapeError(argument, axes, formatShape(shape) + rankAdvice(axes, shape));
}

/** Throws `E_DISPOSED`, or `E_OPTION` for another dtype. */
function checkCore<D extends DType>(core: TensorCore, dtypes: readonly D[], argument: string): asserts core is TensorCore<D> {
  core.assertLive(argument);
  if (!dtypes.includes(core.dtype as D)) throw wrongDtype(argument, dtypes, core.dtype);
}

/** Throws `E_DISPOSED`, `E_SHAPE`, or `E_OPTION` for another dtype. */
export function checkTensorLike<D extends DType>(
  given: unknown,
  dtypes: readonly D[],
  argument: string,
  ranks?: Ranks,
): { shape: Extents; dtype: D; data: DataOf<D> } {
  const core = coreOf(given);
  if (core !== undefined) {
    checkCore(core, dtypes, argument);
    return { shape: core.shape, dtype: core.dtype, data: core.view() };
  }
  const { data, shape: extents, dtype: stated } = readPlain(given, argument);
  const shape = checkShape(extents, argument, ranks);
  const checked = checkData(data, shape, dtypes, argument, stated);
  checkExtents(shape, argument);
  return { shape, ...checked };
}

interface PlainParts {
  readonly data: unknown;
  readonly shape: unknown;
  readonly dtype?: unknown;
}

/** Throws `E_OPTION` if there is no `data` or no `shape`. */
function readPlain(value: unknown, argument: string): PlainParts {
  const isPlain = typeof value === 'object' && value !== null && !isProxyOfTensor(value);
  if (isPlain && 'data' in value && 'shape' in value) return value as PlainParts;
  const why = ArrayBuffer.isView(value) ? ', which has no shape' : '';
  throw optionError(argument, 'a tensor or { data: typed array, shape }', describeData(value) + why);
}

const wrongDtype = (argument: string, wanted: readonly DType[], got: DType): MultiheadError =>
  optionError(argument, `a tensor of dtype ${wanted.map((dtype) => `"${dtype}"`).join(' or ')}`, `"${got}"`);

/** Reads the tensors that the last call listed, and releases the core's list. */
export function readListed<T>({ raw, args }: Runtime, read: (tensor: ListedTensor) => T): T[] {
  try {
    return Array.from({ length: raw.listedCount() }, (_, index) => {
      raw.listed(index as Int32);
      return read(readListedTensor(args.results()));
    });
  } finally {
    raw.releaseListed();
  }
}
