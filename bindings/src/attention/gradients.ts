// Code shared by attentionBackward(), attentionVarlenBackward() and prepareBackward().

import type * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { bytesPerElement, type Heap } from '../runtime/memory.js';
import { noSpan, type Operands } from '../runtime/operands.js';
import { checkFlag, checkNames, checkOptions, type Names, plain } from '../runtime/options.js';
import { coreOf, describe, floatDTypes } from '../runtime/tensor.js';
import type { AttentionBackwardInputs, AttentionBackwardOptions, AttentionGradients, GradientName, Shape } from '../types/index.js';
import type { Operand } from '../types/wire.js';
import type { CallExtents } from './options.js';

/** Names of the inputs, plus the other results of attention(), which are ignored. */
export const inputNames = {
  ...({
    ...{ q: plain, k: plain, v: plain },
    ...{ out: plain, lse: plain, dOut: plain },
  } satisfies Names<AttentionBackwardInputs>),
  ...{ weights: plain, dropoutMask: plain, captures: plain },
};
type Out = NonNullable<AttentionBackwardOptions['out']>;
const outNames = { dQ: plain, dK: plain, dV: plain, dBias: plain } satisfies Names<Out>;
/** The options of a backward call that choose its gradients. */
export const gradientNames = {
  return: plain,
  out: plain,
  checkLse: plain,
} satisfies Names<Pick<AttentionBackwardOptions, 'return' | 'out' | 'checkLse'>>;
export const tensorNames = ['dQ', 'dK', 'dV', 'dBias'] as const;
const vectorNames = ['dSinks', 'dQGain', 'dKGain'] as const;
export type TensorName = (typeof tensorNames)[number];
export type VectorName = (typeof vectorNames)[number];
const returns: readonly GradientName[] = [...tensorNames, ...vectorNames];
/** Reads out, lse and dOut. Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
export function readResults(
  { out, lse, dOut }: AttentionBackwardInputs,
  operands: Operands,
  checkLse = true,
): { results: wire.AttentionResults; dOut: Operand } {
  checkFlag(checkLse, 'checkLse');
  return {
    results: { out: operands.input(out, floatDTypes, 'out'), lse: lseOf(lse, operands), checkLse },
    dOut: operands.input(dOut, floatDTypes, 'dOut'),
  };
}

function lseOf(lse: AttentionBackwardInputs['lse'] | undefined, operands: Operands): Operand<'f32'> {
  if (lse !== undefined) return operands.input(lse, ['f32'], 'lse');
  throw optionError('lse', "a tensor (attention() gives it for return: ['lse'])", 'undefined');
}

/** The requested gradients, with addresses to write to. */
export interface Gradients {
  /** The result without the vectors, which are copied from temporary memory after the call of the core. */
  readonly result: { -readonly [N in GradientName]?: AttentionGradients[N] };
  readonly record: wire.AttentionGradients;
  readonly vectors: readonly VectorName[];
}

/**
 * Makes the gradient tensors. Register all inputs with `operands` before this call. Throws `E_OPTION`, `E_SHAPE`,
 * `E_DISPOSED`, `E_MEMORY`.
 */
export function prepareGradients(
  options: Pick<AttentionBackwardOptions, 'return' | 'out' | 'bias' | 'sinks' | 'qkNorm'>,
  shapes: Readonly<Record<TensorName, Shape>>,
  { heads, width }: Pick<CallExtents, 'heads' | 'width'>,
  operands: Operands,
): Gradients {
  const wanted = wantedGradients(options);
  const given = givenGradients(options.out, wanted);
  const record = noGradients();
  const result: Gradients['result'] = {};
  for (const name of tensorNames) {
    if (!wanted.includes(name)) continue;
    const argument = given[name] === undefined ? name : `out.${name}`;
    const tensor = operands.output(shapes[name], 'f32', argument, given[name]);
    result[name] = tensor;
    record[name] = coreOf(tensor);
  }
  return { result: operands.disposable(result), record, vectors: giveVectors(record, wanted, { heads, width }, operands) };
}

export const noGradients = (): wire.AttentionGradients => ({
  ...{ dQ: undefined, dK: undefined, dV: undefined, dBias: undefined },
  ...{ dSinks: noSpan, dQGain: noSpan, dKGain: noSpan },
});

/** Allocates temporary memory for the requested vectors, and returns their names. Throws `E_MEMORY`. */
export function giveVectors(
  record: wire.AttentionGradients,
  wanted: readonly GradientName[],
  { heads, width }: Pick<CallExtents, 'heads' | 'width'>,
  operands: Operands,
): readonly VectorName[] {
  const vectors = vectorNames.filter((name) => wanted.includes(name));
  for (const name of vectors) {
    const length = name === 'dSinks' ? heads : width;
    const { address } = operands.temporary(length * bytesPerElement('f32'), name);
    record[name] = { address, length };
  }
  return vectors;
}

/** Completes the result after the core has run: copies the vectors from temporary memory. */
export function withVectors({ result, record, vectors }: Gradients, heap: Heap): Gradients['result'] {
  for (const name of vectors) {
    const { address, length } = record[name];
    result[name] = heap.view('f32', address, length).slice();
  }
  return result;
}

export function wantedGradients(options: Pick<AttentionBackwardOptions, 'return' | 'bias' | 'sinks' | 'qkNorm'>): readonly GradientName[] {
  const { bias: dBias, sinks: dSinks, qkNorm } = options;
  if (options.return !== undefined) return checkNames(options.return, returns, 'return');
  const variables: Partial<Record<GradientName, unknown>> = { dBias, dSinks, dQGain: qkNorm?.qGain, dKGain: qkNorm?.kGain };
  return returns.filter((name) => !(name in variables) || variables[name] !== undefined);
}

/** Reads the option `out`, which may name only requested gradients. Throws `E_OPTION`. */
function givenGradients(out: AttentionBackwardOptions['out'], wanted: readonly GradientName[]): NonNullable<AttentionBackwardOptions['out']> {
  if (out === undefined) return {};
  if (coreOf(out) !== undefined) {
    throw optionError('out', `an object with some of ${tensorNames.join(', ')}`, describe(out));
  }
  checkOptions(out, outNames, 'out');
  for (const name of tensorNames) {
    if (out[name] === undefined || wanted.includes(name)) continue;
    throw optionError(`out.${name}`, `only gradients that are returned: ${wanted.join(', ') || 'none'}`, name);
  }
  return out;
}
