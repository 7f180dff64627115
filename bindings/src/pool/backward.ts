// pool.attentionBackward(): each worker gets some batch entries and key/value heads. One worker computes all terms of a
// sum: query heads that share keys and values stay together, and so do heads or entries that share a bias or sinks.

import { attentionInputs } from '../attention/attention.js';
import { backwardNames, elsewhereThanBackward, wholeCall } from '../attention/backward.js';
import { giveVectors, inputNames, noGradients, readResults, tensorNames, type TensorName, wantedGradients } from '../attention/gradients.js';
import { attentionOptions, type CallExtents } from '../attention/options.js';
import { alibiSlopes } from '../attention/positions.js';
import * as wire from '../generated/wire.js';
import type { Operands, Runtime } from '../runtime/operands.js';
import { readOptions } from '../runtime/options.js';
import type { Numbers, ReadTensor } from '../runtime/read_tensor.js';
import { type TypedArray } from '../runtime/typed_arrays.js';
import type { AttentionBackwardInputs, AttentionBackwardOptions, DType, FloatDType, GradientName, Shape } from '../types/index.js';
import { splitOptions } from './arguments.js';
import type { PoolCore } from './core.js';
import { sliceOfArray, withArrays } from './option_arrays.js';
import { checkNoOut, type Piece, pieceOf, runPieces, runWhole, zeros } from './pieces.js';
import { cutEvenly, type Range, tilesOf } from './shared/parts.js';
import { callUncopied, nowhere, operandAt } from './shared/uncopied.js';
import { sliceOf, writeSlice } from './slices.js';
import { withTransfer } from './transfer.js';
import type { CallTensors } from './worker/part.js';

export interface BackwardTensors extends CallTensors {
  readonly out: ReadTensor<FloatDType>;
  readonly lse: ReadTensor<'f32'>;
  readonly dOut: ReadTensor<FloatDType>;
}

type NumbersOf<T> = { readonly [N in keyof T]: T[N] extends ReadTensor<infer D extends DType> | undefined ? Numbers<D> : never };

/** A call that can be divided. */
export interface BackwardCall extends NumbersOf<BackwardTensors> {
  /** Has explicit ALiBi slopes of all heads if ALiBi is used. */
  readonly options: AttentionBackwardOptions;
  readonly wanted: readonly GradientName[];
}

export type Gradients = { [N in GradientName]?: Numbers<'f32'> | Float32Array };

export async function poolAttentionBackward(core: PoolCore, ...given: readonly unknown[]): Promise<unknown> {
  const verb = 'attentionBackward';
  const { args, options: own } = splitOptions(given.slice(1), true);
  return core.call(verb, own, async () => {
    const inputs = readOptions(given[0] as AttentionBackwardInputs, inputNames, 'inputs');
    const names = [backwardNames, verb, elsewhereThanBackward] as const;
    const options = readOptions(args[0] as AttentionBackwardOptions | undefined, ...names);
    checkNoOut(options);
    const planner = core.planner();
    const runtime = planner instanceof Promise ? await planner : planner;
    const { parts, wanted, tensors } = divideBackward(runtime, inputs, options);
    const withSlopes = withAllSlopes(runtime, options, tensors.q.shape[1]);
    return withTransfer(core.settings.exchange, own, Object.values(tensors), async (transferred): Promise<unknown> => {
      const numbers = numbersOf(tensors);
      const { mask, bias, ...others } = numbers;
      const whole = () => runWhole(core, { verb, args: [others, { ...options, mask, bias }], transferred }, own);
      const runs = runsOf(core, parts, core.workers.count);
      if (runs <= 1) return whole();
      const call: BackwardCall = { ...numbers, options: withSlopes, wanted };
      const results = gradientsOf(call, wanted);
      return runPieces<unknown>(backwardPieces(core, call, results, parts, runs), results, own, whole);
    });
  });
}

/** Checks a call without copying its tensors. Throws the same errors as mh.attentionBackward(), except that of the LSE. */
export function divideBackward(runtime: Runtime, inputs: AttentionBackwardInputs, options: AttentionBackwardOptions) {
  return callUncopied(runtime, (operands) => {
    const { query, key, value, extents } = attentionInputs(operands, inputs.q, inputs.k, inputs.v);
    const { results, dOut } = readResults(inputs, operands, options.checkLse);
    const masking = attentionOptions(options, operands, extents);
    const shapes = { dQ: query.shape, dK: key.shape, dV: value.shape, dBias: masking.bias?.shape ?? [1] };
    const { record, wanted } = uncopiedGradients(options, shapes, extents, operands);
    const { args } = runtime;
    wire.attentionBackward(args, query, key, value, masking, results, dOut, record, wholeCall);
    operands.run((raw) => raw.divideBackward());
    const tensors = operands.tensors() as unknown as BackwardTensors;
    return { parts: wire.readBackwardParts(args.results()), wanted, tensors };
  });
}

/** The gradients of a call that is only checked. */
export function uncopiedGradients(
  options: AttentionBackwardOptions,
  shapes: Readonly<Record<TensorName, Shape>>,
  extents: CallExtents,
  operands: Operands,
) {
  const wanted = wantedGradients(options);
  const record = noGradients();
  for (const name of tensorNames) if (wanted.includes(name)) record[name] = operandAt(nowhere, 'f32', shapes[name]);
  giveVectors(record, wanted, extents, operands);
  return { record, wanted };
}

export const numbersOf = (tensors: BackwardTensors): NumbersOf<BackwardTensors> =>
  Object.fromEntries(
    Object.entries(tensors).map(([name, tensor]) => [name, (tensor as ReadTensor).numbers()]),
  ) as unknown as NumbersOf<BackwardTensors>;

/** Replaces `alibi: true` by the slopes of all heads, because a part has only some heads and would get other slopes. */
export const withAllSlopes = <O extends { readonly alibi?: unknown }>(runtime: Runtime, options: O, heads: number | undefined): O =>
  options.alibi === true && heads !== undefined ? { ...options, alibi: alibiSlopes(runtime, heads) } : options;

/** Allocates zeros for each requested gradient, by the shapes of the inputs. */
export function gradientsOf(
  { q, k, v, bias }: Readonly<Record<'q' | 'k' | 'v', { readonly shape: Shape }>> & { readonly bias?: { readonly shape: Shape } | undefined },
  wanted: readonly GradientName[],
): Gradients {
  const shapes: Partial<Record<GradientName, Shape | undefined>> = { dQ: q.shape, dK: k.shape, dV: v.shape, dBias: bias?.shape };
  const results: Gradients = {};
  for (const name of wanted) {
    if (name === 'dSinks') results.dSinks = new Float32Array(q.shape[1] as number);
    else results[name] = zeros('f32', shapes[name] as Shape, name);
  }
  return results;
}

interface HeadTile {
  readonly batches: Range;
  readonly kvHeads: Range;
}

/** Number of parts for `workers` workers. */
export const runsOf = (core: PoolCore, { batches, kvHeads, operations }: wire.BackwardParts, workers: number): number =>
  Math.min(workers, batches * kvHeads, Math.floor(operations / core.settings.leastWork));

/**
 * Divides the call into `runs` runs of heads with about equal work. A run that starts or ends inside a batch entry
 * becomes two or three tiles, and each tile is one piece.
 */
export function backwardPieces(core: PoolCore, call: BackwardCall, results: Gradients, parts: wire.BackwardParts, runs: number): Piece[] {
  const [batch = 0, kvHeads = 0] = call.k.shape;
  const together = { batches: parts.batches < batch, heads: parts.kvHeads < kvHeads };
  const tiles = headTilesOf([batch, kvHeads], together, runs);
  return tiles.map((tile) => pieceOfTile(core, call, results, tile, parts.jobs));
}

function headTilesOf([batch, kvHeads]: readonly [number, number], together: { batches: boolean; heads: boolean }, parts: number): HeadTile[] {
  const all = { batches: [0, batch], kvHeads: [0, kvHeads] } as const;
  if (together.heads) return cutEvenly(batch, parts).map((batches) => ({ ...all, batches }));
  if (together.batches) return cutEvenly(kvHeads, parts).map((of) => ({ ...all, kvHeads: of }));
  const tiles = cutEvenly(batch * kvHeads, parts).flatMap((run) => tilesOf(run, kvHeads));
  return tiles.map(({ rows, columns }) => ({ batches: rows, kvHeads: columns }));
}

function pieceOfTile(core: PoolCore, call: BackwardCall, results: Gradients, { batches, kvHeads }: HeadTile, jobs: number): Piece {
  const group = (call.q.shape[1] as number) / (call.k.shape[1] as number);
  const heads: Range = [kvHeads[0] * group, kvHeads[1] * group];
  const headsOf = (tensor: Numbers) => sliceOf(tensor, batches, heads);
  const inputs = {
    ...{ q: headsOf(call.q), k: sliceOf(call.k, batches, kvHeads), v: sliceOf(call.v, batches, kvHeads) },
    ...{ out: headsOf(call.out), lse: headsOf(call.lse), dOut: headsOf(call.dOut) },
  };
  /** Ranges of the piece in a tensor that broadcasts over all scores (mask or bias). */
  const rangesOf = ({ shape }: Numbers): Range[] => (shape.length === 2 ? [] : [shape[0] === 1 ? [0, 1] : batches, shape[1] === 1 ? [0, 1] : heads]);
  const scoresOf = (tensor: Numbers | undefined) => tensor && sliceOf(tensor, ...rangesOf(tensor));
  const options = optionsOf(call, { batches, heads });
  return pieceOf(
    core,
    {
      name: 'attentionBackward',
      work: (batches[1] - batches[0]) * (kvHeads[1] - kvHeads[0]),
      args: [inputs, { ...options, mask: scoresOf(call.mask), bias: scoresOf(call.bias) }],
    },
    (value) => {
      for (const [name, part] of Object.entries(value as Gradients) as [GradientName, Numbers | Float32Array][]) {
        if (ArrayBuffer.isView(part)) {
          (results[name] as Float32Array).set(part, heads[0]);
          continue;
        }
        const whole = results[name] as Numbers;
        if (name === 'dBias') writeSlice(whole, part, ...rangesOf(whole));
        else writeSlice(whole, part, batches, name === 'dQ' ? heads : kvHeads);
      }
    },
    (args) => ({ kind: 'backwardPart', args, part: { firstBatch: batches[0], firstHead: heads[0], jobs } }),
  );
}

/** Selects the options of some batch entries and query heads, without mask and bias. */
function optionsOf({ q, k, options, wanted }: BackwardCall, { batches, heads }: { batches: Range; heads: Range }): AttentionBackwardOptions {
  const { mask: _, bias: __, out: ___, ...others } = options;
  const positions = (given: TypedArray, tokens: number) => (given.length === tokens ? given : sliceOfArray(given, batches, tokens));
  const sliced = withArrays(others, {
    batch: (array) => sliceOfArray(array, batches),
    heads: (array) => sliceOfArray(array, heads),
    queries: (array) => positions(array, q.shape[2] as number),
    keys: (array) => positions(array, k.shape[2] as number),
  });
  return { ...sliced, return: wanted };
}
