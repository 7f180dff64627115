// Parameters by name: given to the core, and copied out of it.

import { MultiheadError } from './errors.js';
import type { Operand } from './arguments.js';
import type { Operands, Runtime } from './operands.js';
import { describe, elements, floatDTypes, parameterRanks } from './tensor.js';
import { takeListed } from './trace.js';
import type { PlainTensor } from './types.js';

/**
 * Pushes every tensor, for the call that then takes them. Gives the number of their elements. Throws
 * `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`, and has pushed none then.
 */
export function pushStateDict({ raw, args }: Runtime, dict: unknown, operands: Operands): number {
  if (
    typeof dict !== 'object' ||
    dict === null ||
    Array.isArray(dict) ||
    ArrayBuffer.isView(dict)
  ) {
    throw new MultiheadError('E_OPTION', {
      argument: 'stateDict',
      expected: 'an object with a tensor for each name',
      got: describe(dict),
    });
  }
  const tensors = Object.entries(dict).map(([name, tensor]): [string, Operand] => [
    name,
    operands.input(tensor, floatDTypes, `stateDict[${JSON.stringify(name)}]`, parameterRanks),
  ]);
  for (const [name, tensor] of tensors) {
    args.begin().tensor(tensor);
    raw.pushParameter(name);
  }
  return tensors.reduce((sum, [, { shape }]) => sum + elements(shape), 0);
}

/** The parameters that the last call has listed. */
export function takeStateDict(runtime: Runtime): Record<string, PlainTensor> {
  return Object.fromEntries(
    takeListed(runtime).map(({ name, shape, data }) => [name, { shape, data }]),
  );
}
