// pool.attentionBackward(): each worker gets some batch entries and key/value heads. One worker computes all terms of a
// sum: query heads that share keys and values stay together, and so do heads or entries that share a bias or sinks.

import { backwardNames, elsewhereThanBackward } from '../attention/backward.js';
import { inputNames, wantedGradients } from '../attention/gradients.js';
import { alibiSlopes } from '../attention/positions.js';
import type { Runtime } from '../runtime/operands.js';
import { readOptions } from '../runtime/options.js';
import { type Numbers, ReadTensor } from '../runtime/read_tensor.js';
import { sameShape } from '../runtime/shape.js';
import { floatDTypes } from '../runtime/tensor.js';
import { lengthOf, type TypedArray } from '../runtime/typed_arrays.js';
import type {
  AttentionBackwardInputs,
  AttentionBackwardOptions,
  FloatDType,
  GradientName,
  Shape,
} from '../types/index.js';
import { splitOptions } from './arguments.js';
import type { PoolCore } from './core.js';
import { haveLengths, sliceOfArray, withArrays } from './option_arrays.js';
import { cutEvenly, type Piece, pieceOf, runPieces, runWhole, zeros } from './pieces.js';
import { type Range, sliceOf, writeSlice } from './slices.js';
import { withTransfer } from './transfer.js';

/** A call that can be divided. */
export interface BackwardCall {
  readonly q: Numbers<FloatDType>;
  readonly k: Numbers<FloatDType>;
  readonly v: Numbers<FloatDType>;
  readonly out: Numbers<FloatDType>;
  readonly lse: Numbers<'f32'>;
  readonly dOut: Numbers<FloatDType>;
  readonly mask: Numbers<'bool'> | undefined;
  readonly bias: Numbers<'f32'> | undefined;
  /** Has explicit ALiBi slopes of all heads if ALiBi is used. */
  readonly options: AttentionBackwardOptions;
  readonly wanted: readonly GradientName[];
}

export type Gradients = { [N in GradientName]?: Numbers<'f32'> | Float32Array };

export async function poolAttentionBackward(core: PoolCore, ...given: readonly unknown[]): Promise<unknown> {
  const { args, options: own } = splitOptions(given.slice(1), true);
  return core.call('attentionBackward', own, async () => {
    const inputs = readOptions(given[0] as AttentionBackwardInputs, inputNames, 'inputs');
    const names = [backwardNames, 'attentionBackward', elsewhereThanBackward] as const;
    const options = readOptions(args[0] as AttentionBackwardOptions | undefined, ...names);
    const verb = 'attentionBackward';
    const read = readTensors(inputs, options);
    if (read === undefined) return runWhole(core, { verb, args: [inputs, options], transferred: undefined }, own);
    const { wanted, tensors } = read;
    const planner = core.planner();
    const runtime = planner instanceof Promise ? await planner : planner;
    const withSlopes = withAllSlopes(runtime, options, tensors.q.shape[1]);
    return withTransfer(core.settings.exchange, own, Object.values(tensors), async (transferred): Promise<unknown> => {
      const numbers = {
        ...{ q: tensors.q.numbers(), k: tensors.k.numbers(), v: tensors.v.numbers() },
        ...{ out: tensors.out.numbers(), lse: tensors.lse.numbers(), dOut: tensors.dOut.numbers() },
      };
      const [mask, bias] = [tensors.mask?.numbers(), tensors.bias?.numbers()];
      const whole = () => runWhole(core, { verb, args: [numbers, { ...options, mask, bias }], transferred }, own);
      const call: BackwardCall = { ...numbers, mask, bias, options: withSlopes, wanted };
      if (!canBeDivided(call)) return whole();
      const results = gradientsOf(call);
      const pieces = backwardPieces(core, call, results, core.workers.count);
      if (pieces.length <= 1) return whole();
      await runPieces(pieces, own, whole);
      return results;
    });
  });
}

/** Reads the inputs; throws if one is invalid. */
export function readInputs(inputs: AttentionBackwardInputs) {
  const read = (name: 'q' | 'k' | 'v' | 'out' | 'dOut') => new ReadTensor(inputs[name], floatDTypes, name);
  return {
    ...{ q: read('q'), k: read('k'), v: read('v'), out: read('out'), dOut: read('dOut') },
    lse: new ReadTensor(inputs.lse, ['f32'], 'lse'),
  };
}

/**
 * Reads the tensors of a call. Undefined if one is invalid: the call then runs whole, and the worker reports the error.
 */
function readTensors(inputs: AttentionBackwardInputs, options: AttentionBackwardOptions) {
  try {
    const tensors = {
      ...readInputs(inputs),
      mask: options.mask && new ReadTensor(options.mask, ['bool'], 'mask'),
      bias: options.bias && new ReadTensor(options.bias, ['f32'], 'bias'),
    };
    return { tensors, wanted: wantedGradients(options) };
  } catch {
    return undefined;
  }
}

/** Replaces `alibi: true` by the slopes of all heads, because a part has only some heads and would get other slopes. */
export const withAllSlopes = <O extends { readonly alibi?: unknown }>(
  runtime: Runtime,
  options: O,
  heads: number | undefined,
): O => (options.alibi === true && heads !== undefined ? { ...options, alibi: alibiSlopes(runtime, heads) } : options);

/** True if shapes and lengths are valid, so that slices can be taken, and no gradient is a sum over the whole call. */
function canBeDivided({ q, k, v, out, lse, dOut, mask, bias, options, wanted }: BackwardCall): boolean {
  // Gradients of the RMSNorm gains are sums over all tokens and heads.
  if (wanted.includes('dQGain') || wanted.includes('dKGain') || options.out !== undefined) return false;
  if ([q, k, v].some(({ shape }) => shape.length !== 4)) return false;
  const [batch = 0, heads = 0, queries = 0, width = 0] = q.shape;
  const [, kvHeads = 0, keys = 0] = k.shape;
  const [, , , valueDim = 0] = v.shape;
  const result = [batch, heads, queries, valueDim];
  const spreads = ({ shape }: Numbers): boolean => {
    const whole = [batch, heads, queries, keys].slice(-shape.length);
    const hasRank = shape.length === 2 || shape.length === 4;
    return hasRank && whole.every((extent, axis) => [1, extent].includes(shape[axis] as number));
  };
  const lengths = { batch: [batch], heads: [heads], queries: [queries, batch * queries], keys: [keys, batch * keys] };
  const hasShape = [
    [k, [batch, kvHeads, keys, width]],
    [v, [batch, kvHeads, keys, valueDim]],
    ...[out, dOut].map((each) => [each, result] as const),
    [lse, result.slice(0, 3)],
  ] as const;
  return [
    batch > 0 && kvHeads > 0 && heads % kvHeads === 0,
    hasShape.every(([{ shape }, expected]) => sameShape(shape, expected)),
    [mask, bias].every((each) => each === undefined || spreads(each)),
    haveLengths(options, lengths),
    bias !== undefined || !wanted.includes('dBias'),
    options.sinks !== undefined || !wanted.includes('dSinks'),
  ].every(Boolean);
}

/** Allocates zeros for each requested gradient. */
export function gradientsOf({ q, k, v, bias, options, wanted }: BackwardCall): Gradients {
  const shapes: Partial<Record<GradientName, Shape>> = { dQ: q.shape, dK: k.shape, dV: v.shape };
  const results: Gradients = {};
  for (const name of wanted) {
    if (name === 'dSinks') results.dSinks = new Float32Array((options.sinks as Float32Array).length);
    else results[name] = zeros('f32', name === 'dBias' ? (bias as Numbers).shape : (shapes[name] as Shape), name);
  }
  return results;
}

interface HeadTile {
  readonly batches: Range;
  readonly kvHeads: Range;
}

/**
 * Divides the call into at most `count` runs of heads with about equal work. A run that starts or ends inside a batch
 * entry becomes two or three tiles, and each tile is one piece.
 */
export function backwardPieces(core: PoolCore, call: BackwardCall, results: Gradients, count: number): Piece[] {
  const { q, k, v, bias, wanted } = call;
  const [batch = 0, heads = 0, queries = 0, width = 0] = q.shape;
  const [, kvHeads = 0, keys = 0] = k.shape;
  const sharedBias = (axis: 0 | 1): boolean =>
    wanted.includes('dBias') && (bias?.shape.length === 2 || bias?.shape[axis] === 1);
  const together = { batches: sharedBias(0) || wanted.includes('dSinks'), heads: sharedBias(1) };
  const most = (together.batches ? 1 : batch) * (together.heads ? 1 : kvHeads);
  const jobs = (sharedBias(0) ? 1 : batch) * (sharedBias(1) ? 1 : kvHeads);
  const operations = 2 * batch * heads * queries * keys * (3 * width + 2 * (v.shape[3] as number));
  const parts = Math.min(count, most, Math.floor(operations / core.settings.leastWork));
  if (parts <= 1) return [];
  const tiles = tilesOf([batch, kvHeads], together, parts);
  return tiles.map((tile) => pieceOfTile(core, call, results, tile, jobs));
}

function tilesOf(
  [batch, kvHeads]: readonly [number, number],
  together: { batches: boolean; heads: boolean },
  parts: number,
): HeadTile[] {
  const runs = (items: number): Range[] => {
    const ends = cutEvenly(Array.from({ length: items }, () => 1), parts);
    return ends.map((end, index) => [ends[index - 1] ?? 0, end]);
  };
  const all = { batches: [0, batch], kvHeads: [0, kvHeads] } as const;
  if (together.heads) return runs(batch).map((batches) => ({ ...all, batches }));
  if (together.batches) return runs(kvHeads).map((of) => ({ ...all, kvHeads: of }));
  return runs(batch * kvHeads).flatMap(([first, end]) => {
    const tiles: HeadTile[] = [];
    for (let at = first; at < end; ) {
      const [entry, head] = [Math.floor(at / kvHeads), at % kvHeads];
      const whole = head === 0 ? Math.floor((end - at) / kvHeads) : 0;
      const endHead = whole > 0 ? kvHeads : Math.min(kvHeads, head + end - at);
      tiles.push({ batches: [entry, entry + Math.max(1, whole)], kvHeads: [head, endHead] });
      at += Math.max(1, whole) * (endHead - head);
    }
    return tiles;
  });
}

function pieceOfTile(
  core: PoolCore,
  call: BackwardCall,
  results: Gradients,
  { batches, kvHeads }: HeadTile,
  jobs: number,
): Piece {
  const group = (call.q.shape[1] as number) / (call.k.shape[1] as number);
  const heads: Range = [kvHeads[0] * group, kvHeads[1] * group];
  const headsOf = (tensor: Numbers) => sliceOf(tensor, batches, heads);
  const inputs = {
    ...{ q: headsOf(call.q), k: sliceOf(call.k, batches, kvHeads), v: sliceOf(call.v, batches, kvHeads) },
    ...{ out: headsOf(call.out), lse: headsOf(call.lse), dOut: headsOf(call.dOut) },
  };
  /** Ranges of the piece in a tensor that broadcasts over all scores (mask or bias). */
  const rangesOf = ({ shape }: Numbers): Range[] =>
    shape.length === 2 ? [] : [shape[0] === 1 ? [0, 1] : batches, shape[1] === 1 ? [0, 1] : heads];
  const scoresOf = (tensor: Numbers | undefined) => tensor && sliceOf(tensor, ...rangesOf(tensor));
  const options = optionsOf(call, { batches, heads });
  return pieceOf(
    core,
    {
      name: 'attentionBackward',
      work: (batches[1] - batches[0]) * (kvHeads[1] - kvHeads[0]),
      args: [inputs, { ...options, mask: scoresOf(call.mask), bias: scoresOf(call.bias) }],
    },
    (args) => ({ kind: 'backwardPart', args, part: { firstBatch: batches[0], firstHead: heads[0], jobs } }),
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
  );
}

/** Selects the options of some batch entries and query heads, without mask and bias. */
function optionsOf(
  { q, k, options, wanted }: BackwardCall,
  { batches, heads }: { batches: Range; heads: Range },
): AttentionBackwardOptions {
  const { mask: _, bias: __, out: ___, ...others } = options;
  const positions = (given: TypedArray, tokens: number) =>
    lengthOf(given) === tokens ? given : sliceOfArray(given, batches, tokens);
  const sliced = withArrays(others, {
    batch: (array) => sliceOfArray(array, batches),
    heads: (array) => sliceOfArray(array, heads),
    queries: (array) => positions(array, q.shape[2] as number),
    keys: (array) => positions(array, k.shape[2] as number),
  });
  return { ...sliced, return: wanted };
}
