// mh.prepare: a call of attention() that is checked and planned once, and run on tensors of its shapes.

import { maskNames, optionsArg } from './attention_options.js';
import { CoreObject } from './core_object.js';
import { MultiheadError } from './errors.js';
import {
  alsoAnInput,
  call,
  checkNotAnInput,
  checkStatus,
  noSpan,
  ownTensor,
  type KeptInputs,
  type Runtime,
} from './operands.js';
import { checkChoice, checkCount, checkNames, checkOptions } from './options.js';
import type { SpanArg } from './raw.js';
import {
  checkShape,
  describe,
  floatDTypes,
  formatShape,
  sameShape,
  typedArrayName,
} from './tensor.js';
import type {
  FloatDType,
  PreparedAttention,
  PreparedShapes,
  PrepareOptions,
  Shape,
  Tensor,
} from './types.js';

const optionNames = [
  ...(['q', 'kvHeads', 'keys', 'valueWidth', 'dtype', 'kvDtype', 'outDtype', 'return'] as const),
  ...maskNames,
] as const satisfies readonly (keyof PrepareOptions)[];
const elsewhere = {
  out: 'it is given to run()',
  capture: 'call attention() for captures',
};

/** What a tensor of a run has to be, and where it may lie in none. */
interface Wanted {
  readonly dtype: FloatDType;
  readonly shape: Shape;
}

interface WantedTensors {
  readonly q: Wanted;
  readonly k: Wanted;
  readonly v: Wanted;
  readonly out: Wanted;
  readonly lse: Wanted | undefined;
}

export class WasmPreparedAttention extends CoreObject implements PreparedAttention {
  readonly shapes: PreparedShapes;

  /** mask and bias, where they are the caller's tensors. */
  readonly #kept: KeptInputs['tensors'];
  readonly #wanted: WantedTensors;

  /** Where runs read kvLengths; noSpan where there are none. */
  readonly #kvLengths: SpanArg;
  #kvLengthsView: Int32Array | undefined;

  constructor(runtime: Runtime, options: PrepareOptions) {
    checkOptions(options, optionNames, 'prepare', elsewhere);
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
      const masking = optionsArg(options, operands, { batch, heads, queries, keys, width });
      const toCome = (tensor: Wanted) => ({ address: 0, ...tensor });
      args.begin().tensor(toCome(wanted.q)).tensor(toCome(wanted.k)).tensor(toCome(wanted.v));
      args.options(masking).outputs({
        out: toCome(wanted.out),
        lse: wanted.lse && toCome(wanted.lse),
        weights: undefined,
        dropoutMask: undefined,
      });
      const handle = operands.checkHandle(raw.prepare());
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
    const query = this.#address(q, wanted.q, 'q');
    const key = this.#address(k, wanted.k, 'k');
    const value = this.#address(v, wanted.v, 'v');
    const output = this.#address(out, wanted.out, 'out');
    const sums = this.#lseAddress(lse);
    if (out === q) throw alsoAnInput('out', 'q');
    if (out === k) throw alsoAnInput('out', 'k');
    if (out === v) throw alsoAnInput('out', 'v');
    if (this.#kept.length > 0) this.#checkKept(out);
    const status = runtime.raw._multihead_run(handle, query, key, value, output, sums);
    if (status !== 0) checkStatus(runtime, status);
  }

  setKvLengths(lengths: Int32Array): void {
    // For the check that it is not disposed.
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
  #address(given: unknown, { dtype, shape }: Wanted, argument: string): number {
    const tensor = ownTensor(given, this.runtime.heap, dtype, argument);
    if (!sameShape(tensor.shape, shape)) {
      throw new MultiheadError('E_SHAPE', {
        argument,
        expected: `${formatShape(shape)}, as prepared`,
        got: formatShape(tensor.shape),
      });
    }
    return tensor.address;
  }

  #lseAddress(lse: unknown): number {
    const wanted = this.#wanted.lse;
    if (wanted !== undefined) return this.#address(lse, wanted, 'lse');
    if (lse === undefined) return 0;
    throw new MultiheadError('E_OPTION', {
      argument: 'lse',
      expected: "undefined, since it was prepared without return: ['lse']",
      got: describe(lse),
    });
  }

  #checkKept(out: unknown): void {
    for (const { tensor, name } of this.#kept) tensor.assertLive(name);
    checkNotAnInput(out, this.#kept, 'out');
  }
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
  if (values.length !== count) {
    throw new MultiheadError('E_SHAPE', {
      argument,
      expected: `${count} values`,
      got: `${values.length} values`,
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
