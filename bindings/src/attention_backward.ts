// mh.attentionBackward: gradients of mh.attention.

import type { Operand } from './arguments.js';
import { attentionInputs } from './attention.js';
import { attentionOptions, maskNames, type CallExtents } from './attention_options.js';
import { MultiheadError } from './errors.js';
import { bytesPerElement } from './memory.js';
import { call, noSpan, type Operands, type Runtime } from './operands.js';
import { checkNames, checkOptions, readOptions } from './options.js';
import { coreOf, describe, floatDTypes } from './tensor.js';
import type {
  AttentionBackwardInputs,
  AttentionBackwardOptions,
  AttentionBackwardResult,
  AttentionGradients,
  GradientName,
  Shape,
} from './types.js';
import * as wire from './wire.js';

/** The inputs, and what a result of attention() has besides, which is ignored. */
const inputNames = [
  ...(['q', 'k', 'v', 'out', 'lse', 'dOut'] as const satisfies readonly (keyof AttentionBackwardInputs)[]),
  ...['weights', 'dropoutMask', 'captures'],
];
const tensorNames = ['dQ', 'dK', 'dV', 'dBias'] as const;
const vectorNames = ['dSinks', 'dQGain', 'dKGain'] as const;
type TensorName = (typeof tensorNames)[number];
type VectorName = (typeof vectorNames)[number];
const gradientNames: readonly GradientName[] = [...tensorNames, ...vectorNames];
const optionNames = [
  ...maskNames,
  ...(['return', 'out'] as const),
] as const satisfies readonly (keyof AttentionBackwardOptions)[];
const elsewhere = {
  outDtype: 'gradients are f32',
  capture: 'attention() captures scores',
};

export function attentionBackward<const R extends readonly GradientName[] | undefined>(
  runtime: Runtime,
  givenInputs: AttentionBackwardInputs,
  given: AttentionBackwardOptions<R> = {},
): AttentionBackwardResult<R> {
  const inputs = readOptions(givenInputs, inputNames, 'inputs');
  const options = readOptions(given, optionNames, 'attentionBackward', elsewhere);

  return call(runtime, (operands) => {
    const { query, key, value, extents } = attentionInputs(operands, inputs.q, inputs.k, inputs.v);
    const out = operands.input(inputs.out, floatDTypes, 'out');
    const lse = lseOf(inputs, operands);
    const dOut = operands.input(inputs.dOut, floatDTypes, 'dOut');
    const masking = attentionOptions(options, operands, extents);

    const shapes = {
      dQ: query.shape,
      dK: key.shape,
      dV: value.shape,
      // Without a bias, the core refuses dBias whatever its shape.
      dBias: masking.bias?.shape ?? [1],
    };
    const { result, record, vectors } = prepareGradients(options, shapes, extents, operands);
    const { args, raw, heap } = runtime;
    wire.attentionBackward(args, query, key, value, masking, { out, lse }, dOut, record);
    operands.run(() => raw.attentionBackward());
    for (const name of vectors) {
      const { address, length } = record[name];
      result[name] = heap.view('f32', address, length).slice();
    }
    return result as AttentionBackwardResult<R>;
  });
}

function lseOf({ lse }: Partial<AttentionBackwardInputs>, operands: Operands): Operand<'f32'> {
  if (lse !== undefined) return operands.input(lse, ['f32'], 'lse');
  throw new MultiheadError('E_OPTION', {
    argument: 'lse',
    expected: "a tensor (attention() gives it for return: ['lse'])",
    got: 'undefined',
  });
}

interface Gradients {
  /** Without the vectors, which are copied from temporary memory after the call of the core. */
  readonly result: { -readonly [N in GradientName]?: AttentionGradients[N] };
  readonly record: wire.AttentionGradients;
  readonly vectors: readonly VectorName[];
}

/** The inputs must have been asked for already. Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
function prepareGradients(
  options: AttentionBackwardOptions,
  shapes: Readonly<Record<TensorName, Shape>>,
  { heads, width }: CallExtents,
  operands: Operands,
): Gradients {
  const wanted = wantedGradients(options);
  const given = givenGradients(options.out, wanted);
  const record: wire.AttentionGradients = {
    ...{ dQ: undefined, dK: undefined, dV: undefined, dBias: undefined },
    ...{ dSinks: noSpan, dQGain: noSpan, dKGain: noSpan },
  };
  const result: Gradients['result'] = {};
  for (const name of tensorNames) {
    if (!wanted.includes(name)) continue;
    const argument = given[name] === undefined ? name : `out.${name}`;
    const tensor = operands.output(shapes[name], 'f32', argument, given[name]);
    result[name] = tensor;
    record[name] = coreOf(tensor);
  }
  const vectors = vectorNames.filter((name) => wanted.includes(name));
  for (const name of vectors) {
    const length = name === 'dSinks' ? heads : width;
    const { address } = operands.temporary(length * bytesPerElement('f32'), name);
    record[name] = { address, length };
  }
  return { result, record, vectors };
}

function wantedGradients({ return: stated, bias, sinks, qkNorm }: AttentionBackwardOptions) {
  if (stated !== undefined) return checkNames(stated, gradientNames, 'return');
  const variables: Partial<Record<GradientName, unknown>> = {
    dBias: bias,
    dSinks: sinks,
    dQGain: qkNorm?.qGain,
    dKGain: qkNorm?.kGain,
  };
  return gradientNames.filter((name) => !(name in variables) || variables[name] !== undefined);
}

/** The option `out`, which has only gradients that are wanted. Throws `E_OPTION`. */
function givenGradients(
  out: AttentionBackwardOptions['out'],
  wanted: readonly GradientName[],
): NonNullable<AttentionBackwardOptions['out']> {
  if (out === undefined) return {};
  if (coreOf(out) !== undefined) {
    throw new MultiheadError('E_OPTION', {
      argument: 'out',
      expected: `an object with some of ${tensorNames.join(', ')}`,
      got: describe(out),
    });
  }
  checkOptions(out, tensorNames, 'out');
  for (const name of tensorNames) {
    if (out[name] === undefined || wanted.includes(name)) continue;
    throw new MultiheadError('E_OPTION', {
      argument: `out.${name}`,
      expected: `only gradients that are returned: ${wanted.join(', ') || 'none'}`,
      got: name,
    });
  }
  return out;
}
