// mh.prepare: a call of attention() that is checked and planned once and run many times.

import { attentionOptions, maskNames } from './attention_options.js';
import type { Operand, Span } from './arguments.js';
import { CoreObject } from './core_object.js';
import { MultiheadError } from './errors.js';
import {
  call,
  checkShared,
  checkStatus,
  noSpan,
  ownTensor,
  sharesMemory,
  type KeptInputs,
  type Runtime,
} from './operands.js';
import { checkChoice, checkCount, checkNames, readOptions } from './options.js';
import { formatShape, sameShape } from './shape.js';
import { checkShape, describe, floatDTypes, type TensorCore } from './tensor.js';
import { lengthOf, typedArrayName } from './typed_arrays.js';
import type {
  FloatDType,
  PreparedAttention,
  PreparedShapes,
  PrepareOptions,
  Shape,
  Tensor,
} from './types.js';
import * as wire from './wire.js';

const optionNames = [
  ...(['q', 'kvHeads', 'keys', 'valueWidth', 'dtype', 'kvDtype', 'outDtype', 'return'] as const),
  ...maskNames,
] as const satisfies readonly (keyof PrepareOptions)[];
const elsewhere = {
  out: 'it is given to run()',
  capture: 'call attention() for captures',
};

/** What a tensor of a run has to be. */
interface Wanted<D extends FloatDType = FloatDType> {
  readonly dtype: D;
  readonly shape: Shape;
}

/** A tensor that only run() will give: without an address. */
const toCome = <D extends FloatDType>(tensor: Wanted<D>): Operand<D> => ({ address: 0, ...tensor });

interface WantedTensors {
  readonly q: Wanted;
  readonly k: Wanted;
  readonly v: Wanted;
  readonly out: Wanted;
  readonly lse: Wanted<'f32'> | undefined;
}

export class WasmPreparedAttention extends CoreObject implements PreparedAttention {
  readonly shapes: PreparedShapes;

  /** mask and bias if they are tensors of the caller's. */
  readonly #kept: KeptInputs['tensors'];
  readonly #wanted: WantedTensors;

  /** Where runs read kvLengths, or noSpan. */
  readonly #kvLengths: Span<'i32'>;
  #kvLengthsView: Int32Array | undefined;

  constructor(runtime: Runtime, given: PrepareOptions) {
    const options = readOptions(given, optionNames, 'prepare', elsewhere);
    const [batch, heads, queries, width] = checkQueries(options.q);
    const { kvHeads = heads, keys = queries, valueWidth = width } = options;
    const { dtype = 'f32', kvDtype = dtype, outDtype = 'f32' } = options;
    checkCount(kvHeads, 'kvHeads', 0);
    checkCount(keys, 'keys', 0);
    checkCount(valueWidth, 'valueWidth', 0);
    for (const [name, value] of Object.entries({ dtype, kvDtype, outDtype })) {
      checkChoice(value, floatDTypes, name);
    }
    const returned = checkNames(options.return ?? [], ['lse'], 'return');

    const shapes = {
      q: [batch, heads, queries, width],
      k: [batch, kvHeads, keys, width],
      v: [batch, kvHeads, keys, valueWidth],
      out: [batch, heads, queries, valueWidth],
      lse: [batch, heads, queries],
    };
    for (const shape of Object.values(shapes)) Object.freeze(shape);
    Object.freeze(shapes);
    const wanted: WantedTensors = {
      q: { dtype, shape: shapes.q },
      k: { dtype: kvDtype, shape: shapes.k },
      v: { dtype: kvDtype, shape: shapes.v },
      out: { dtype: outDtype, shape: shapes.out },
      lse: returned.includes('lse') ? { dtype: 'f32', shape: shapes.lse } : undefined,
    };

    const { args, raw, heap } = runtime;
    const { handle, copies, tensors, kvLengths } = call(runtime, (operands) => {
      const masking = attentionOptions(options, operands, { batch, heads, queries, keys, width });
      const outputs: wire.AttentionOutputs = {
        out: toCome(wanted.out),
        lse: wanted.lse && toCome(wanted.lse),
        weights: undefined,
        dropoutMask: undefined,
      };
      const { q, k, v } = wanted;
      wire.attention(args, toCome(q), toCome(k), toCome(v), masking, outputs);
      const handle = operands.make(() => raw.prepare());
      return { handle, kvLengths: masking.kvLengths, ...operands.keepInputs() };
    });
    const name = { argument: 'prepared', noun: 'an operation' };
    super(runtime, handle, name, {
      what: () => 'a prepared operation',
      free() {
        raw.preparedRelease(handle);
        for (const block of copies) heap.release(block);
      },
    });
    this.shapes = shapes;
    this.#wanted = wanted;
    this.#kept = tensors;
    this.#kvLengths = kvLengths;
    Object.freeze(this);
  }

  run(
    q: Tensor<FloatDType>,
    k: Tensor<FloatDType>,
    v: Tensor<FloatDType>,
    out: Tensor<FloatDType>,
    lse?: Tensor,
  ): void {
    const { handle, runtime } = this;
    const wanted = this.#wanted;
    const query = this.#tensor(q, wanted.q, 'q');
    const key = this.#tensor(k, wanted.k, 'k');
    const value = this.#tensor(v, wanted.v, 'v');
    const output = this.#tensor(out, wanted.out, 'out');
    const sums = this.#lse(lse);
    const { storage } = output;
    if (storage === query.storage) throw sharesMemory('out', 'q');
    if (storage === key.storage) throw sharesMemory('out', 'k');
    if (storage === value.storage) throw sharesMemory('out', 'v');
    if (sums !== undefined) checkSums(sums, query, key, value, output);
    if (this.#kept.length > 0) this.#checkKept(output, sums);
    const status = runtime.raw._multihead_run(
      handle,
      query.address,
      key.address,
      value.address,
      output.address,
      sums === undefined ? 0 : sums.address,
    );
    if (status !== 0) checkStatus(runtime, status);
  }

  setKvLengths(lengths: Int32Array): void {
    // Throws if it is disposed.
    void this.handle;
    const { address, length } = this.#kvLengths;
    if (this.#kvLengths === noSpan) {
      throw new MultiheadError('E_OPTION', {
        argument: 'kvLengths',
        expected: 'an operation that was prepared with kvLengths',
        got: 'one without',
      });
    }
    checkKvLengths(lengths, length, this.shapes.k[2] as number);
    const { heap } = this.runtime;
    if (this.#kvLengthsView?.buffer !== heap.buffer) {
      this.#kvLengthsView = heap.view('i32', address, length);
    }
    this.#kvLengthsView.set(lengths);
  }

  /** Throws `E_OPTION`, `E_DISPOSED`, `E_SHAPE`. */
  #tensor(given: unknown, { dtype, shape }: Wanted, argument: string): TensorCore {
    const tensor = ownTensor(given, this.runtime.heap, dtype, argument);
    if (!sameShape(tensor.shape, shape)) {
      throw new MultiheadError('E_SHAPE', {
        argument,
        expected: `${formatShape(shape)}, as prepared`,
        got: formatShape(tensor.shape),
      });
    }
    return tensor;
  }

  #lse(lse: unknown): TensorCore | undefined {
    const wanted = this.#wanted.lse;
    if (wanted !== undefined) return this.#tensor(lse, wanted, 'lse');
    if (lse === undefined) return undefined;
    throw new MultiheadError('E_OPTION', {
      argument: 'lse',
      expected: "undefined, since it was prepared without return: ['lse']",
      got: describe(lse),
    });
  }

  #checkKept(out: TensorCore, sums: TensorCore | undefined): void {
    for (const { tensor, name } of this.#kept) tensor.assertLive(name);
    checkShared(out, this.#kept, 'out');
    if (sums !== undefined) checkShared(sums, this.#kept, 'lse');
  }
}

/** Throws `E_OPTION`. */
function checkSums(
  { storage }: TensorCore,
  q: TensorCore,
  k: TensorCore,
  v: TensorCore,
  out: TensorCore,
): void {
  if (storage === q.storage) throw sharesMemory('lse', 'q');
  if (storage === k.storage) throw sharesMemory('lse', 'k');
  if (storage === v.storage) throw sharesMemory('lse', 'v');
  if (storage === out.storage) throw sharesMemory('lse', 'out');
}

function checkQueries(shape: unknown): [number, number, number, number] {
  const extents = checkShape(shape, 'q');
  if (extents.length !== 4) {
    throw new MultiheadError('E_SHAPE', {
      argument: 'q',
      expected: '(B, H_q, N_q, d_k)',
      got: formatShape(extents),
    });
  }
  for (const extent of extents) checkCount(extent, 'q', 0);
  return extents as [number, number, number, number];
}

/** Throws `E_OPTION` and `E_SHAPE` as prepare() does. */
function checkKvLengths(lengths: unknown, count: number, keys: number): void {
  const argument = 'kvLengths';
  if (typedArrayName(lengths) !== 'Int32Array') {
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: 'an Int32Array',
      got: describe(lengths),
    });
  }
  const values = lengths as Int32Array;
  if (lengthOf(values) !== count) {
    throw new MultiheadError('E_SHAPE', {
      argument,
      expected: `${count} values`,
      got: `${lengthOf(values)} values`,
    });
  }
  for (let batch = 0; batch < count; batch += 1) {
    const value = values[batch] as number;
    if (value >= 0 && value <= keys) continue;
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: `lengths from 0 to N_k = ${keys}`,
      got: `${value} for entry ${batch}`,
    });
  }
}
