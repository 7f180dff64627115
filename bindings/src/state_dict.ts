// State dicts: passes parameters to the core by name, and copies them out of it.

import { MultiheadError } from './errors.js';
import type { Operands, Runtime } from './operands.js';
import { copyOf } from './options.js';
import { elements, parameterRanks } from './shape.js';
import { describe, floatDTypes } from './tensor.js';
import { takeListed } from './trace.js';
import type { PlainTensor } from './types.js';
import * as wire from './wire.js';

const encoder = new TextEncoder();

/**
 * Pushes every tensor to the core, for the next load call. Returns their total number of elements.
 * Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`; nothing has been pushed if the dict is
 * invalid.
 */
export function pushStateDict(
  { raw, args, heap }: Runtime,
  given: unknown,
  operands: Operands,
): number {
  const dict = copyOf(given, 'stateDict', []);
  if (
    typeof dict !== 'object' ||
    dict === null ||
    Array.isArray(dict) ||
    ArrayBuffer.isView(dict)
  ) {
    throw new MultiheadError('E_OPTION', {
      argument: 'stateDict',
      expected: 'an object with a tensor for each name',
      got: describe(given),
    });
  }
  const entries = Object.entries(dict);
  const tensors = entries.map(([name, tensor]) => ({
    name: encoder.encode(name),
    tensor: operands.input(
      tensor,
      floatDTypes,
      `stateDict[${JSON.stringify(name)}]`,
      parameterRanks,
    ),
  }));
  const longest = tensors.reduce((most, { name }) => Math.max(most, name.length), 0);
  const { address } = operands.temporary(longest, 'stateDict');
  for (const { name, tensor } of tensors) {
    heap.view('bool', address, name.length).set(name);
    wire.pushParameter(args, tensor, { address, length: name.length });
    operands.run(() => raw.pushParameter());
  }
  return tensors.reduce((sum, { tensor: { shape } }) => sum + elements(shape), 0);
}

/** Copies of the parameters that the last call listed. */
export function takeStateDict(runtime: Runtime): Record<string, PlainTensor> {
  return Object.fromEntries(
    takeListed(runtime).map(({ name, shape, data }) => [name, { shape, data }]),
  );
}
