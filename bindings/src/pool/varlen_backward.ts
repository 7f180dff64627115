// pool.attentionVarlenBackward(): each worker gets some of the packed sequences; a long sequence is divided by heads.
// The gradient of a sink is a sum over all sequences of a head, so with dSinks each worker gets some heads of all
// sequences.

import { inputNames, wantedGradients } from '../attention/gradients.js';
import { checkRope, elsewhere, varlenBackwardNames } from '../attention/varlen.js';
import { readOptions } from '../runtime/options.js';
import type { Numbers, ReadTensor } from '../runtime/read_tensor.js';
import { sameShape } from '../runtime/shape.js';
import type {
  AttentionBackwardInputs,
  AttentionBackwardOptions,
  FloatDType,
  GradientName,
  VarlenBackwardOptions,
} from '../types/index.js';
import { splitOptions } from './arguments.js';
import {
  type BackwardCall,
  backwardPieces,
  type Gradients,
  gradientsOf,
  readInputs,
  withAllSlopes,
} from './backward.js';
import type { PoolCore } from './core.js';
import { haveLengths, sliceOfArray, withArrays } from './option_arrays.js';
import { cutEvenly, type Piece, pieceOf, runPieces, runWhole, zeros } from './pieces.js';
import { optionsOfGroup, optionsOfSequence, planSequences, rowsOf, type Sequences, sequencesOf } from './sequences.js';
import { type Range, reshapedTo, sliceOf, swapped, writeSlice } from './slices.js';
import { withTransfer } from './transfer.js';

interface PackedCall {
  readonly q: ReadTensor<FloatDType>;
  readonly k: ReadTensor<FloatDType>;
  readonly v: ReadTensor<FloatDType>;
  readonly out: ReadTensor<FloatDType>;
  readonly lse: ReadTensor<'f32'>;
  readonly dOut: ReadTensor<FloatDType>;
  /** Has explicit ALiBi slopes of all heads if ALiBi is used. */
  readonly options: VarlenBackwardOptions;
  readonly wanted: readonly GradientName[];
  readonly sequences: Sequences;
}

export async function poolAttentionVarlenBackward(core: PoolCore, ...given: readonly unknown[]): Promise<unknown> {
  const { args, options: own } = splitOptions(given.slice(1), true);
  return core.call('attentionVarlenBackward', own, async () => {
    const inputs = readOptions(given[0] as AttentionBackwardInputs, inputNames, 'inputs');
    const names = [varlenBackwardNames, 'attentionVarlenBackward', elsewhere] as const;
    const options = readOptions(args[0] as VarlenBackwardOptions, ...names);
    checkRope(options);
    const verb = 'attentionVarlenBackward';
    const read = readTensors(inputs, options);
    if (read === undefined) return runWhole(core, { verb, args: [inputs, options], transferred: undefined }, own);
    const { tensors, wanted } = read;
    const planner = core.planner();
    const runtime = planner instanceof Promise ? await planner : planner;
    const withSlopes = withAllSlopes(runtime, options, tensors.q.shape[1]);
    return withTransfer(core.settings.exchange, own, Object.values(tensors), async (transferred): Promise<unknown> => {
      const whole = () => {
        const numbers = Object.fromEntries(Object.entries(tensors).map(([name, tensor]) => [name, tensor.numbers()]));
        return runWhole(core, { verb, args: [numbers, options], transferred }, own);
      };
      const sequences = sequencesOf([tensors.q, tensors.k, tensors.v], options);
      if (sequences === undefined || core.workers.count <= 1) return whole();
      const call: PackedCall = { ...tensors, options: withSlopes, wanted, sequences };
      if (!canBeDivided(call)) return whole();
      const results: Gradients = {};
      for (const name of wanted) {
        if (name === 'dSinks') results.dSinks = new Float32Array(call.q.shape[1] as number);
        else results[name] = zeros('f32', call[inputOf[name as keyof typeof inputOf]].shape, name);
      }
      const divide = wanted.includes('dSinks') ? piecesOfHeads : piecesOfSequences;
      const pieces = divide(core, call, results);
      if (pieces.length <= 1) return whole();
      await runPieces(pieces, own, whole);
      return results;
    });
  });
}

const inputOf = { dQ: 'q', dK: 'k', dV: 'v' } as const;

/**
 * Reads the tensors of a call. Undefined if one is invalid: the call then runs whole, and the worker reports the error.
 */
function readTensors(inputs: AttentionBackwardInputs, options: VarlenBackwardOptions) {
  try {
    return { tensors: readInputs(inputs), wanted: wantedGradients(options) };
  } catch {
    return undefined;
  }
}

/** True if shapes and lengths are valid, so that slices can be taken, and no gradient is a sum over the whole call. */
function canBeDivided({ q, k, v, out, lse, dOut, options, wanted }: PackedCall): boolean {
  // Gradients of gains are sums over all tokens and heads. A bias is invalid here, so the undivided call reports it.
  if (wanted.some((name) => ['dQGain', 'dKGain', 'dBias'].includes(name)) || options.out !== undefined) return false;
  const [tokens = 0, heads = 0, width = 0] = q.shape;
  const shape = [tokens, heads, v.shape[2] as number];
  return [
    [out, dOut].every((each) => sameShape(each.shape, shape)),
    sameShape(lse.shape, [heads, tokens]),
    k.shape[2] === width,
    haveLengths(options, { heads: [heads] }),
    options.sinks !== undefined || !wanted.includes('dSinks'),
  ].every(Boolean);
}

function piecesOfSequences(core: PoolCore, call: PackedCall, results: Gradients): Piece[] {
  const { q, v, sequences } = call;
  const [, heads = 0, width = 0] = q.shape;
  const { long, groups } = planSequences(core, sequences, 2 * heads * (3 * width + 2 * (v.shape[2] as number)));
  const longPieces = long.flatMap(({ sequence, workers, work }) => {
    const pieces = piecesOfSequence(core, call, results, { sequence, workers, work });
    // A sequence that cannot be divided is one piece.
    return pieces.length > 0 ? pieces : [pieceOfGroup(core, call, results, [sequence, sequence + 1], work * workers)];
  });
  return [...groups.map(({ range, work }) => pieceOfGroup(core, call, results, range, work)), ...longPieces];
}

function pieceOfGroup(core: PoolCore, call: PackedCall, results: Gradients, range: Range, work: number): Piece {
  const { options, sequences } = call;
  const [queries, keys] = [rowsOf(sequences.cuQ, ...range), rowsOf(sequences.cuK, ...range)];
  const heads = call.q.shape[1] as number;
  const inputs = {
    ...{ q: sliceOf(call.q.numbers(), queries), k: sliceOf(call.k.numbers(), keys), v: sliceOf(call.v.numbers(), keys) },
    ...{ out: sliceOf(call.out.numbers(), queries), dOut: sliceOf(call.dOut.numbers(), queries) },
    lse: sliceOf(call.lse.numbers(), [0, heads], queries),
  };
  return pieceOf(
    core,
    { name: 'attentionVarlenBackward', work, args: [inputs, optionsOfGroup(options, sequences, range)] },
    (args) => ({ kind: 'run', verb: 'attentionVarlenBackward', args }),
    (value) => {
      for (const [name, part] of Object.entries(value as Gradients) as ['dQ' | 'dK' | 'dV', Numbers][]) {
        writeSlice(results[name] as Numbers, part, name === 'dQ' ? queries : keys);
      }
    },
  );
}

/** Divides one sequence, as a call of attentionBackward() with a batch of one. */
function piecesOfSequence(
  core: PoolCore,
  call: PackedCall,
  results: Gradients,
  { sequence, workers, work }: { sequence: number; workers: number; work: number },
): Piece[] {
  const { options, wanted, sequences } = call;
  const queries = rowsOf(sequences.cuQ, sequence);
  const keys = rowsOf(sequences.cuK, sequence);
  const byHeads = (tensor: ReadTensor<FloatDType>, rows: Range): Numbers<FloatDType> => {
    const moved = swapped(sliceOf(tensor.numbers(), rows));
    return reshapedTo(moved, [1, ...moved.shape]);
  };
  const lse = sliceOf(call.lse.numbers(), [0, call.q.shape[1] as number], queries);
  const alone: BackwardCall = {
    ...{ q: byHeads(call.q, queries), k: byHeads(call.k, keys), v: byHeads(call.v, keys) },
    ...{ out: byHeads(call.out, queries), dOut: byHeads(call.dOut, queries), lse: reshapedTo(lse, [1, ...lse.shape]) },
    ...{ mask: undefined, bias: undefined, wanted },
    options: optionsOfSequence(options, sequence) as AttentionBackwardOptions,
  };
  const own = gradientsOf(alone);
  const pieces = backwardPieces(core, alone, own, workers);
  let left = pieces.length;
  return pieces.map(({ run }) => ({
    work,
    run: async (signal) => {
      await run(signal);
      left -= 1;
      if (left > 0) return;
      for (const [name, whole] of Object.entries(own) as ['dQ' | 'dK' | 'dV', Numbers][]) {
        const rows = swapped(reshapedTo(whole, whole.shape.slice(1)));
        writeSlice(results[name] as Numbers, rows, name === 'dQ' ? queries : keys);
      }
    },
  }));
}

/** Divides by heads, each piece with all sequences. Returns none with dropout, whose mask depends on the head index. */
function piecesOfHeads(core: PoolCore, call: PackedCall, results: Gradients): Piece[] {
  const { q, k, v, options, sequences } = call;
  if (options.dropout !== undefined) return [];
  const [tokens = 0, heads = 0, width = 0] = q.shape;
  const [keys = 0, numKvHeads = 0] = k.shape;
  const { cuQ, cuK, count } = sequences;
  let scores = 0;
  for (let s = 0; s < count; s += 1) {
    scores += ((cuQ[s + 1] as number) - (cuQ[s] as number)) * ((cuK[s + 1] as number) - (cuK[s] as number));
  }
  const operations = 2 * scores * heads * (3 * width + 2 * (v.shape[2] as number));
  const parts = Math.min(core.workers.count, numKvHeads, Math.floor(operations / core.settings.leastWork));
  if (parts <= 1) return [];
  const ends = cutEvenly(Array.from({ length: numKvHeads }, () => 1), parts);
  return ends.map((end, index) => {
    const own: Range = [ends[index - 1] ?? 0, end];
    const group = heads / numKvHeads;
    const queryHeads: Range = [own[0] * group, own[1] * group];
    const cut = (tensor: ReadTensor, rows: number, range: Range) => sliceOf(tensor.numbers(), [0, rows], range);
    const inputs = {
      ...{ q: cut(q, tokens, queryHeads), k: cut(k, keys, own), v: cut(v, keys, own) },
      ...{ out: cut(call.out, tokens, queryHeads), dOut: cut(call.dOut, tokens, queryHeads) },
      lse: sliceOf(call.lse.numbers(), queryHeads),
    };
    const args = [inputs, withArrays(options, { heads: (array) => sliceOfArray(array, queryHeads) })];
    return pieceOf(
      core,
      { name: 'attentionVarlenBackward', work: own[1] - own[0], args },
      (sent) => ({ kind: 'run', verb: 'attentionVarlenBackward', args: sent }),
      (value) => {
        for (const [name, part] of Object.entries(value as Gradients) as [GradientName, Numbers | Float32Array][]) {
          const whole = results[name] as Numbers;
          if (ArrayBuffer.isView(part)) (results[name] as Float32Array).set(part, queryHeads[0]);
          else writeSlice(whole, part, [0, whole.shape[0] as number], name === 'dQ' ? queryHeads : own);
        }
      },
    );
  });
}
