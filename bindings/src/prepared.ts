// mh.prepare: a call of attention() that is checked and planned once, and run on tensors of its shapes.

import { maskNames, optionsArg } from './attention_options.js';
import { MultiheadError } from './errors.js';
import type { Holding } from './memory.js';
import {
  alsoAnInput,
  call,
  checkNotAnInput,
  checkStatus,
  ownTensor,
  type KeptInputs,
  type Runtime,
} from './operands.js';
import { checkChoice, checkCount, checkNames, checkOptions } from './options.js';
import { checkShape, describe, floatDTypes, formatShape, sameShape } from './tensor.js';
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

export class WasmPreparedAttention implements PreparedAttention {
  readonly shapes: PreparedShapes;
  /** Defined on the prototype by load(): see symbol_dispose.ts. */
  declare [Symbol.dispose]: () => void;

  readonly #runtime: Runtime;
  readonly #handle: number;
  readonly #holding: Holding;
  /** mask and bias, where they are the caller's tensors. */
  readonly #kept: KeptInputs['tensors'];
  readonly #q: Wanted;
  readonly #k: Wanted;
  readonly #v: Wanted;
  readonly #out: Wanted;
  readonly #lse: Wanted | undefined;
  #disposed = false;

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
    this.shapes = Object.freeze(shapes);
    this.#q = { dtype, shape: shapes.q };
    this.#k = { dtype: kvDtype, shape: shapes.k };
    this.#v = { dtype: kvDtype, shape: shapes.v };
    this.#out = { dtype: outDtype, shape: shapes.out };
    this.#lse = returned.includes('lse') ? { dtype: 'f32', shape: shapes.lse } : undefined;

    this.#runtime = runtime;
    const { args, raw, heap } = runtime;
    const { handle, copies, tensors } = call(runtime, (operands) => {
      const masking = optionsArg(options, operands, { batch, heads, queries, keys, width });
      const toCome = (wanted: Wanted) => ({ address: 0, ...wanted });
      args.begin().tensor(toCome(this.#q)).tensor(toCome(this.#k)).tensor(toCome(this.#v));
      args.options(masking).outputs({
        out: toCome(this.#out),
        lse: this.#lse && toCome(this.#lse),
        weights: undefined,
        dropoutMask: undefined,
      });
      const made = raw.prepare();
      // What the core refuses it reports as minus a status.
      if (made <= 0) operands.check(-made);
      return { handle: made, ...operands.keepInputs() };
    });
    this.#handle = handle;
    this.#kept = tensors;
    this.#holding = {
      what: () => 'a prepared operation',
      free() {
        raw.preparedRelease(handle);
        for (const block of copies) heap.release(block);
      },
    };
    heap.adopt(this, this.#holding);
  }

  get disposed(): boolean {
    return this.#disposed;
  }

  run(
    q: Tensor<FloatDType>,
    k: Tensor<FloatDType>,
    v: Tensor<FloatDType>,
    out: Tensor<FloatDType>,
    lse?: Tensor,
  ): void {
    if (this.#disposed) throw disposedError();
    const query = this.#address(q, this.#q, 'q');
    const key = this.#address(k, this.#k, 'k');
    const value = this.#address(v, this.#v, 'v');
    const output = this.#address(out, this.#out, 'out');
    const sums = this.#lseAddress(lse);
    if (out === q) throw alsoAnInput('out', 'q');
    if (out === k) throw alsoAnInput('out', 'k');
    if (out === v) throw alsoAnInput('out', 'v');
    if (this.#kept.length > 0) this.#checkKept(out);
    const { raw } = this.#runtime;
    const status = raw._multihead_run(this.#handle, query, key, value, output, sums);
    if (status !== 0) checkStatus(this.#runtime, status);
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#runtime.heap.retire(this, this.#holding);
  }

  /** Throws `E_OPTION`, `E_DISPOSED`, `E_SHAPE`. */
  #address(given: unknown, { dtype, shape }: Wanted, argument: string): number {
    const tensor = ownTensor(given, this.#runtime.heap, dtype, argument);
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
    if (this.#lse !== undefined) return this.#address(lse, this.#lse, 'lse');
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

const disposedError = (): MultiheadError =>
  new MultiheadError('E_DISPOSED', {
    argument: 'prepared',
    expected: 'an operation that is not disposed',
    got: 'a disposed one',
  });
