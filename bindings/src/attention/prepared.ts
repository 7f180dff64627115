// mh.prepare: a call of attention() that is checked and planned once and run many times.

import * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { call, checkStatus, type KeptInputs, type Runtime, sharesMemory } from '../runtime/operands.js';
import { checkNames, type Names, plain, readOptions } from '../runtime/options.js';
import { describe, type TensorCore } from '../runtime/tensor.js';
import type { FloatDType, PreparedAttention, PrepareOptions, Tensor } from '../types/index.js';
import { attentionOptions } from './options.js';
import { checkKept, PreparedCall, type PreparedExtents, preparedExtents, preparedNames, toCome, type Wanted, wantedTensor } from './prepared_call.js';

const optionNames = { ...preparedNames, return: plain } satisfies Names<PrepareOptions>;
const elsewhere = {
  out: 'it is given to run()',
  capture: 'call attention() for captures',
};

type WantedTensors = Omit<PreparedExtents['tensors'], 'lse'> & { readonly lse: Wanted<'f32'> | undefined };

export class WasmPreparedAttention extends PreparedCall implements PreparedAttention {
  readonly #wanted: WantedTensors;
  /** mask and bias if they are tensors of the caller. */
  readonly #kept: KeptInputs['tensors'];

  constructor(runtime: Runtime, given: PrepareOptions) {
    const options = readOptions(given, optionNames, 'prepare', elsewhere);
    const extents = preparedExtents(options);
    const { shapes, tensors } = extents;
    const returned = checkNames(options.return ?? [], ['lse'], 'return');
    const wanted: WantedTensors = { ...tensors, lse: returned.includes('lse') ? tensors.lse : undefined };

    const { args, raw } = runtime;
    const made = call(runtime, (operands) => {
      const masking = attentionOptions(options, operands, extents);
      const outputs: wire.AttentionOutputs = {
        out: toCome(wanted.out),
        lse: wanted.lse && toCome(wanted.lse),
        weights: undefined,
        dropoutMask: undefined,
      };
      const { q, k, v } = wanted;
      wire.attention(args, toCome(q), toCome(k), toCome(v), masking, outputs);
      const handle = operands.make((raw) => raw.prepare());
      return { handle, kvLengths: masking.kvLengths, ...operands.keepInputs() };
    });
    super(runtime, made, shapes, (handle) => raw.preparedRelease(handle));
    this.#wanted = wanted;
    this.#kept = made.tensors;
    Object.freeze(this);
  }

  run(q: Tensor<FloatDType>, k: Tensor<FloatDType>, v: Tensor<FloatDType>, out: Tensor<FloatDType>, lse?: Tensor): void {
    const { handle, runtime } = this;
    const wanted = this.#wanted;
    const query = wantedTensor(runtime.heap, q, wanted.q, 'q');
    const key = wantedTensor(runtime.heap, k, wanted.k, 'k');
    const value = wantedTensor(runtime.heap, v, wanted.v, 'v');
    const output = wantedTensor(runtime.heap, out, wanted.out, 'out');
    const sums = this.#lse(lse);
    const { storage } = output;
    if (storage === query.storage) throw sharesMemory('out', 'q');
    if (storage === key.storage) throw sharesMemory('out', 'k');
    if (storage === value.storage) throw sharesMemory('out', 'v');
    if (sums !== undefined) checkSums(sums, query, key, value, output);
    if (this.#kept.length > 0) {
      const written = [{ tensor: output, name: 'out' }];
      if (sums !== undefined) written.push({ tensor: sums, name: 'lse' });
      checkKept(this.#kept, written);
    }
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

  #lse(lse: unknown): TensorCore | undefined {
    const wanted = this.#wanted.lse;
    if (wanted !== undefined) return wantedTensor(this.runtime.heap, lse, wanted, 'lse');
    if (lse === undefined) return undefined;
    throw optionError('lse', "undefined, since it was prepared without return: ['lse']", describe(lse));
  }
}

/** Throws `E_OPTION`. */
function checkSums({ storage }: TensorCore, q: TensorCore, k: TensorCore, v: TensorCore, out: TensorCore): void {
  if (storage === q.storage) throw sharesMemory('lse', 'q');
  if (storage === k.storage) throw sharesMemory('lse', 'k');
  if (storage === v.storage) throw sharesMemory('lse', 'v');
  if (storage === out.storage) throw sharesMemory('lse', 'out');
}
