// Code shared by mh.prepare and mh.prepareBackward: the shapes of the runs, the tensors that are kept, and kvLengths.

import { CoreObject } from '../runtime/core_object.js';
import { optionError, shapeError } from '../runtime/errors.js';
import type { Heap } from '../runtime/memory.js';
import { checkShared, type KeptInputs, type NamedTensor, noSpan, ownTensor, type Runtime } from '../runtime/operands.js';
import { checkChoice, checkCount, type Names, plain } from '../runtime/options.js';
import { formatShape, sameShape } from '../runtime/shape.js';
import { checkShape, describeData, floatDTypes, type TensorCore } from '../runtime/tensor.js';
import { firstOf, typedArrayName } from '../runtime/typed_arrays.js';
import type { FloatDType, PreparedCallOptions, PreparedShapes } from '../types/index.js';
import type { Count, Extents, Int32, Operand, Span } from '../types/wire.js';
import { attentionSchema } from './options.js';

/** The names in {@link PreparedCallOptions}. */
export const preparedNames = {
  ...{ q: plain, numKvHeads: plain, keys: plain, valueDim: plain },
  ...{ dtype: plain, kvDtype: plain, outDtype: plain },
  ...attentionSchema,
} satisfies Names<PreparedCallOptions>;

/** Required dtype and shape of a tensor of a run. */
export interface Wanted<D extends FloatDType = FloatDType> {
  readonly dtype: D;
  readonly shape: Extents;
}

/** A placeholder without an address for a tensor that only run() gets. */
export const toCome = <D extends FloatDType>(tensor: Wanted<D>): Operand<D> => ({ address: 0, ...tensor });

/** The extents of a prepared call, and the tensors of a run. */
export interface PreparedExtents {
  readonly batch: Count;
  readonly heads: Count;
  readonly queries: Count;
  readonly keys: Count;
  /** d_k */
  readonly width: Count;
  readonly shapes: Readonly<Record<keyof PreparedShapes, Extents>>;
  readonly tensors: Readonly<Record<'q' | 'k' | 'v' | 'out', Wanted>> & { readonly lse: Wanted<'f32'> };
}

/** Reads options whose names have been checked. Throws `E_OPTION`, `E_SHAPE`. */
export function preparedExtents(options: PreparedCallOptions): PreparedExtents {
  const [batch, heads, queries, width] = checkQueries(options.q);
  const count = (name: 'numKvHeads' | 'keys' | 'valueDim', otherwise: Count): Count =>
    options[name] === undefined ? otherwise : checkCount(options[name], name, 0);
  const numKvHeads = count('numKvHeads', heads);
  if (numKvHeads === 0 ? heads > 0 : heads % numKvHeads !== 0) {
    throw shapeError('numKvHeads', `a divisor of H_q = ${heads}`, String(numKvHeads));
  }
  const keys = count('keys', queries);
  const valueDim = count('valueDim', width);
  const { dtype = 'f32', kvDtype = dtype, outDtype = 'f32' } = options;
  for (const [name, value] of Object.entries({ dtype, kvDtype, outDtype })) {
    checkChoice(value, floatDTypes, name);
  }
  const shapes = {
    q: [batch, heads, queries, width],
    k: [batch, numKvHeads, keys, width],
    v: [batch, numKvHeads, keys, valueDim],
    out: [batch, heads, queries, valueDim],
    lse: [batch, heads, queries],
  };
  for (const shape of Object.values(shapes)) Object.freeze(shape);
  Object.freeze(shapes);
  const tensors = {
    q: { dtype, shape: shapes.q },
    k: { dtype: kvDtype, shape: shapes.k },
    v: { dtype: kvDtype, shape: shapes.v },
    out: { dtype: outDtype, shape: shapes.out },
    lse: { dtype: 'f32', shape: shapes.lse },
  } as const;
  return { batch, heads, queries, keys, width, shapes, tensors };
}

/** A prepared operation in the core, and the inputs that its runs read besides their tensors. */
export interface Prepared extends KeptInputs {
  readonly handle: Int32;
  readonly kvLengths: Span<'i32'>;
}

export abstract class PreparedCall extends CoreObject {
  readonly shapes: PreparedShapes;

  /** Address from which runs read kvLengths, or noSpan. */
  readonly #kvLengths: Span<'i32'>;
  #kvLengthsView: Int32Array | undefined;

  /** @param release frees the operation in the core; must not reference the new object */
  constructor(runtime: Runtime, made: Prepared, shapes: PreparedShapes, release: (handle: Int32) => void) {
    const { heap } = runtime;
    const { handle, copies, kvLengths } = made;
    const name = { argument: 'prepared', noun: 'an operation' };
    super(runtime, handle, name, {
      what: () => 'a prepared operation',
      free() {
        release(handle);
        for (const block of copies) heap.release(block);
      },
    });
    this.shapes = shapes;
    this.#kvLengths = kvLengths;
  }

  setKvLengths(lengths: Int32Array): void {
    // Throws if the operation is disposed.
    void this.handle;
    const { address, length } = this.#kvLengths;
    if (this.#kvLengths === noSpan) {
      throw optionError('kvLengths', 'an operation that was prepared with kvLengths', 'one without');
    }
    checkKvLengths(lengths, length, this.shapes.k[2] as number);
    const { heap } = this.runtime;
    if (this.#kvLengthsView?.buffer !== heap.buffer) {
      this.#kvLengthsView = heap.view('i32', address, length);
    }
    this.#kvLengthsView.set(firstOf(lengths, length));
  }
}

/** Checks a tensor of a run. Throws `E_OPTION`, `E_DISPOSED`, `E_SHAPE`. */
export function wantedTensor(heap: Heap, given: unknown, { dtype, shape }: Wanted, argument: string): TensorCore {
  const tensor = ownTensor(given, heap, dtype, argument);
  if (!sameShape(tensor.shape, shape)) {
    throw shapeError(argument, `${formatShape(shape)}, as prepared`, formatShape(tensor.shape));
  }
  return tensor;
}

/** Checks the tensors that prepare() kept. Throws `E_DISPOSED`, and `E_OPTION` if one of `written` is also kept. */
export function checkKept(kept: KeptInputs['tensors'], written: readonly NamedTensor[]): void {
  for (const { tensor, name } of kept) tensor.assertLive(name);
  for (const { tensor, name } of written) checkShared(tensor, kept, name);
}

function checkQueries(shape: unknown): [Count, Count, Count, Count] {
  const extents = checkShape(shape, 'q');
  if (extents.length !== 4) throw shapeError('q', '(B, H_q, N_q, d_k)', formatShape(extents));
  return extents.map((extent) => checkCount(extent, 'q', 0)) as [Count, Count, Count, Count];
}

/** Throws `E_OPTION` and `E_SHAPE` for the same lengths as prepare(). */
function checkKvLengths(lengths: unknown, count: number, keys: number): void {
  const argument = 'kvLengths';
  if (typedArrayName(lengths) !== 'Int32Array') throw optionError(argument, 'an Int32Array', describeData(lengths));
  const values = lengths as Int32Array;
  if (values.length !== count) throw shapeError(argument, `${count} values`, `${values.length} values`);
  for (let batch = 0; batch < count; batch += 1) {
    const value = values[batch] as number;
    if (value >= 0 && value <= keys) continue;
    throw optionError(argument, `lengths from 0 to N_k = ${keys}`, `${value} for entry ${batch}`);
  }
}
