// Lists that have no place in the block: lists.h and models.cc read them.

import { editActions } from '../../generated/tables.js';
import type * as wire from '../../generated/wire.js';
import { noSpan, type Operands, type Runtime } from '../../runtime/operands.js';
import { toUtf8 } from '../../runtime/text.js';
import type { ModelInfo } from '../../types/models.js';
import type { Operand, Span, Uint32 } from '../../types/wire.js';
import type { Batch, Place, PlacedEdit } from './engine.js';

/** Copies numbers into memory that lasts until the end of the call. */
function copySpan(
  operands: Operands,
  { heap }: Runtime,
  List: typeof Uint8Array | typeof Float64Array,
  numbers: ArrayLike<number>,
  argument: string,
): Span<never> {
  if (numbers.length === 0) return noSpan;
  const { address } = operands.temporary(List.BYTES_PER_ELEMENT * numbers.length, argument);
  new List(heap.buffer as ArrayBuffer, address, numbers.length).set(numbers);
  return { address, length: numbers.length as Uint32 };
}

export const textSpan = (operands: Operands, runtime: Runtime, text: string, argument: string): Span<'text'> =>
  copySpan(operands, runtime, Uint8Array, toUtf8(text), argument);

export const numberSpan = (operands: Operands, runtime: Runtime, numbers: ArrayLike<number>, argument: string): Span<'f64'> =>
  copySpan(operands, runtime, Float64Array, numbers, argument);

export const ints = (operands: Operands, ids: Int32Array, argument: string): Span<'i32'> =>
  ids.length === 0 ? noSpan : operands.span(ids, 'i32', argument);

/** The inputs of a pass without its edits. */
export function inputsOf(
  runtime: Runtime,
  operands: Operands,
  { numLayers, numHeads }: ModelInfo,
  batch: Batch,
  headScales: Float32Array | undefined,
): wire.ModelInputs {
  return {
    ids: ints(operands, batch.ids, 'input'),
    batch: batch.batch,
    mask: batch.mask === undefined ? noSpan : copySpan(operands, runtime, Uint8Array, batch.mask, 'mask'),
    tokenTypes: batch.tokenTypes === undefined ? noSpan : ints(operands, batch.tokenTypes, 'tokenTypes'),
    pixels: batch.pixels === undefined ? noSpan : operands.span(batch.pixels, 'f32', 'pixels'),
    headScales: operands.optionalSpan(headScales, 'f32', 'headScales', numLayers * numHeads),
    source: batch.source === undefined ? noSpan : ints(operands, batch.source, 'input'),
  };
}

const counted = (list: readonly number[] = []): number[] => [list.length, ...list];

/** Places of values with one sequence, and their outputs. */
export function captureSpan(runtime: Runtime, operands: Operands, places: readonly Place[], outputs: readonly Operand[]): Span<'f64'> {
  const numbers = places.flatMap(({ site, layer, heads }, at) => {
    const { address, shape } = outputs[at] as Operand;
    return [site, layer, ...counted(heads), address, ...counted([1, ...shape])];
  });
  return numberSpan(operands, runtime, numbers, 'capture');
}

export function editSpan(runtime: Runtime, operands: Operands, edits: readonly PlacedEdit[] = []): Span<'f64'> {
  const numbers = edits.flatMap(({ site, layer, sequences, heads, tokens, action, factor, value }) => {
    const { address } = value === undefined ? noSpan : operands.span(value.data, 'f32', 'edits');
    // What takes the place of a whole value has an axis of sequences.
    const shape = action === editActions.replace ? [1, ...(value?.shape ?? [])] : value?.shape;
    return [site, layer, ...counted(sequences), ...counted(heads), ...counted(tokens), action, factor, address, ...counted(shape)];
  });
  return numberSpan(operands, runtime, numbers, 'edits');
}
