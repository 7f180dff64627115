// State dicts: passes parameters to the core by name, and copies parameters from the core.

import * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import type { Heap } from '../runtime/memory.js';
import type { Operands, Runtime } from '../runtime/operands.js';
import { checkCount } from '../runtime/options.js';
import { ReadTensor } from '../runtime/read_tensor.js';
import { parameterRanks } from '../runtime/shape.js';
import { describe, floatDTypes } from '../runtime/tensor.js';
import { quoted, toUtf8 } from '../runtime/text.js';
import type { FloatDType, PlainTensor } from '../types/index.js';
import type { Int32, Operand } from '../types/wire.js';
import { takeListed } from './trace.js';

/** Throws `E_OPTION`. */
function entriesOf(dict: unknown): [name: string, tensor: unknown][] {
  if (typeof dict === 'object' && dict !== null && !Array.isArray(dict) && !ArrayBuffer.isView(dict)) {
    return Object.entries(dict);
  }
  throw optionError('stateDict', 'an object with a tensor for each name', describe(dict));
}

const argumentOf = (name: string): string => `stateDict[${quoted(name)}]`;

function push({ args, heap }: Runtime, operands: Operands, tensors: readonly [name: string, tensor: Operand][]): void {
  const encoded = tensors.map(([name, tensor]) => ({ name: toUtf8(name), tensor }));
  const longest = encoded.reduce((most, { name }) => Math.max(most, name.length), 0);
  const { address } = operands.temporary(longest, 'stateDict');
  for (const { name, tensor } of encoded) {
    heap.view('bool', address, name.length).set(name);
    wire.pushParameter(args, tensor, { address, length: checkCount(name.length, 'stateDict', 0) });
    operands.run((raw) => raw.pushParameter());
  }
}

/**
 * Pushes copies of all tensors to the core, for the next load call of a trainer, unless `check` throws. Throws
 * `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`; nothing has been pushed if the dict is invalid.
 */
export function pushStateDict(runtime: Runtime, given: unknown, operands: Operands, check: (copies: ReadonlyMap<string, Operand>) => void): void {
  const inputs = entriesOf(given).map(([name, tensor]): [string, Operand] => [
    name,
    operands.input(tensor, floatDTypes, argumentOf(name), parameterRanks),
  ]);
  check(new Map(inputs));
  push(runtime, operands, inputs);
}

/** Tensors that readParameter() reads during a load call; a tensor's key is its index + 1. */
let reading: { readonly heap: Heap; readonly tensors: readonly ReadTensor<FloatDType>[] } | undefined;

/** Called by the core. Copies elements of a parameter to an address. Returns 0 if there is no such parameter. */
export function readParameter(key: number, first: number, count: number, address: number): number {
  const tensor = reading?.tensors[key - 1];
  if (reading === undefined || tensor === undefined) return 0;
  const { data, dtype } = tensor.numbers();
  reading.heap.view(dtype, address, count).set(data.subarray(first, first + count));
  return 1;
}

/**
 * Calls a load function of the core, which reads the tensors in chunks, so that the WebAssembly memory holds the
 * parameters only once. Throws the errors of pushStateDict().
 */
export function loadStateDict(runtime: Runtime, given: unknown, operands: Operands, load: () => Int32): void {
  const read = entriesOf(given).map(([name, tensor]): [string, ReadTensor<FloatDType>] => {
    return [name, new ReadTensor(tensor, floatDTypes, argumentOf(name), parameterRanks)];
  });
  // An error of readParameter() would end the instance.
  for (const [, tensor] of read) tensor.numbers();
  const keyed = read.map(
    ([name, { dtype, shape }], index) => [name, { address: checkCount(index + 1, 'stateDict'), dtype, shape }] as [string, Operand],
  );
  push(runtime, operands, keyed);
  reading = { heap: runtime.heap, tensors: read.map(([, tensor]) => tensor) };
  try {
    operands.run(load);
  } finally {
    reading = undefined;
  }
}

/** Copies of the parameters that the last call listed. */
export const takeStateDict = (runtime: Runtime): Record<string, PlainTensor> =>
  Object.fromEntries(takeListed(runtime).map(({ name, shape, data }) => [name, { shape, data }]));
