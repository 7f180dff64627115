// mh.prepareBackward: a call of attentionBackward() that is checked and planned once and run many times.

import * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { call, checkShared, checkStatus, type KeptInputs, type NamedTensor, ownTensor, type Runtime } from '../runtime/operands.js';
import { checkChoice, checkOptions, type Names, plain, readOptions } from '../runtime/options.js';
import { describe, floatDTypes } from '../runtime/tensor.js';
import type { PrepareBackwardOptions, PreparedBackward, PreparedBackwardGradients, PreparedBackwardInputs } from '../types/index.js';
import type { PreparedBackwardResult } from '../types/index.js';
import { wholeCall } from './backward.js';
import { giveVectors, inputNames, noGradients, type VectorName, wantedGradients, withVectors } from './gradients.js';
import { attentionOptions } from './options.js';
import { checkKept, PreparedCall, preparedExtents, preparedNames, toCome, type Wanted, wantedTensor } from './prepared_call.js';

const outNames = { dBias: plain } satisfies Names<NonNullable<PrepareBackwardOptions['out']>>;
const optionNames = {
  ...preparedNames,
  ...{ dOutDtype: plain, return: plain, out: plain },
} satisfies Names<PrepareBackwardOptions>;
const elsewhere = { capture: 'attention() captures scores' };
const outputNames = ['dQ', 'dK', 'dV'] as const satisfies readonly (keyof PreparedBackwardGradients)[];
const runNames = { dQ: plain, dK: plain, dV: plain } satisfies Names<PreparedBackwardGradients>;
type OutputName = (typeof outputNames)[number];

export class WasmPreparedBackward extends PreparedCall implements PreparedBackward {
  readonly #inputs: Readonly<Record<keyof PreparedBackwardInputs, Wanted>>;
  /** The requested gradient tensors. */
  readonly #outputs: Partial<Readonly<Record<OutputName, Wanted<'f32'>>>>;
  /** mask and bias if they are tensors of the caller. */
  readonly #kept: KeptInputs['tensors'];
  /** dBias, if requested. */
  readonly #written: readonly NamedTensor[];
  /** Addresses to which runs write the vectors. */
  readonly #record: Readonly<wire.AttentionGradients>;
  readonly #vectors: readonly VectorName[];

  constructor(runtime: Runtime, given: PrepareBackwardOptions) {
    const options = readOptions(given, optionNames, 'prepareBackward', elsewhere);
    const extents = preparedExtents(options);
    const { shapes, tensors } = extents;
    const { dOutDtype = tensors.out.dtype, out: into = {} } = options;
    checkChoice(dOutDtype, floatDTypes, 'dOutDtype');
    checkOptions(into, outNames, 'out', { dQ: 'it is given to run()', dK: 'it is given to run()', dV: 'it is given to run()' });
    const wanted = wantedGradients(options);
    const inputs = { ...tensors, dOut: { dtype: dOutDtype, shape: shapes.out } };
    const outputs: Partial<Record<OutputName, Wanted<'f32'>>> = {};
    if (wanted.includes('dQ')) outputs.dQ = { dtype: 'f32', shape: shapes.q };
    if (wanted.includes('dK')) outputs.dK = { dtype: 'f32', shape: shapes.k };
    if (wanted.includes('dV')) outputs.dV = { dtype: 'f32', shape: shapes.v };
    const record = noGradients();
    const written: NamedTensor[] = [];

    const { args, heap, raw } = runtime;
    const { vectors, ...made } = call(runtime, (operands) => {
      const masking = attentionOptions(options, operands, extents);
      for (const name of outputNames) record[name] = outputs[name] && toCome(outputs[name]);
      if (wanted.includes('dBias') || into.dBias !== undefined) {
        // The core rejects dBias without a bias, so any shape will do here.
        const tensor = operands.output(masking.bias?.shape ?? [1], 'f32', 'out.dBias', givenBias(into.dBias, wanted));
        const core = ownTensor(tensor, heap, 'f32', 'out.dBias');
        record.dBias = core;
        written.push({ tensor: core, name: 'out.dBias' });
      }
      const names = giveVectors(record, wanted, extents, operands);
      const { q, k, v, out, lse, dOut } = inputs;
      const results = { out: toCome(out), lse: toCome(lse), checkLse: false };
      wire.attentionBackward(args, toCome(q), toCome(k), toCome(v), masking, results, toCome(dOut), record, wholeCall);
      const handle = operands.make((raw) => raw.prepareBackward());
      return { vectors: names, handle, kvLengths: masking.kvLengths, ...operands.keepInputs() };
    });
    super(runtime, made, shapes, (handle) => raw.preparedBackwardRelease(handle));
    this.#inputs = inputs;
    this.#outputs = outputs;
    this.#kept = made.tensors;
    this.#written = written;
    this.#record = record;
    this.#vectors = vectors;
    Object.freeze(this);
  }

  run(givenInputs: PreparedBackwardInputs, given: PreparedBackwardGradients = {}): PreparedBackwardResult {
    const { runtime } = this;
    const inputs = readOptions(givenInputs, inputNames, 'inputs');
    const gradients = readOptions(given, runNames, 'gradients', { dBias: 'it is given to prepareBackward()' });
    const { handle } = this;
    const read = (name: keyof PreparedBackwardInputs): NamedTensor => ({
      tensor: wantedTensor(this.runtime.heap, inputs[name], this.#inputs[name], name),
      name,
    });
    const [q, k, v, out, lse, dOut] = [read('q'), read('k'), read('v'), read('out'), read('lse'), read('dOut')];
    const [dQ, dK, dV] = [this.#output(gradients, 'dQ'), this.#output(gradients, 'dK'), this.#output(gradients, 'dV')];

    const others = [q, k, v, out, lse, dOut];
    const written = [...this.#written];
    for (const { tensor, name } of written) {
      tensor.assertLive(name);
      checkShared(tensor, others, name);
    }
    for (const output of [dQ, dK, dV]) {
      if (output === undefined) continue;
      checkShared(output.tensor, others, output.name);
      checkShared(output.tensor, written, output.name);
      written.push(output);
    }
    checkKept(this.#kept, written);
    const address = (named: NamedTensor | undefined) => named?.tensor.address ?? 0;
    const status = runtime.raw._multihead_run_backward(
      ...([handle, address(q), address(k), address(v), address(out), address(lse), address(dOut)] as const),
      ...([address(dQ), address(dK), address(dV)] as const),
    );
    if (status !== 0) checkStatus(runtime, status);
    return withVectors({ result: {}, record: this.#record, vectors: this.#vectors }, runtime.heap) as PreparedBackwardResult;
  }

  #output(gradients: PreparedBackwardGradients, name: OutputName): NamedTensor | undefined {
    const given = gradients[name];
    const wanted = this.#outputs[name];
    if (wanted !== undefined) return { tensor: wantedTensor(this.runtime.heap, given, wanted, name), name };
    if (given === undefined) return undefined;
    throw optionError(name, `undefined, since it was prepared without ${name}`, describe(given));
  }
}

/** Throws `E_OPTION` if no tensor is given: every run writes to it, so the caller must make it. */
function givenBias<T>(given: T | undefined, wanted: readonly string[]): T {
  if (given !== undefined && wanted.includes('dBias')) return given;
  throw optionError(
    'out.dBias',
    given === undefined ? 'a tensor that every run writes to' : `only with dBias among the gradients: ${wanted.join(', ') || 'none'}`,
    describe(given),
  );
}
