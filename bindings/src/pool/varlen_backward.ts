// pool.attentionVarlenBackward(): each worker gets some of the packed sequences; a long sequence is divided by heads.
// The gradient of a sink is a sum over all sequences of a head, so with dSinks each worker gets some heads of all
// sequences.

import { inputNames, readResults } from '../attention/gradients.js';
import { checkRope, elsewhere, readPacked, varlenBackwardNames } from '../attention/varlen.js';
import * as wire from '../generated/wire.js';
import type { Runtime } from '../runtime/operands.js';
import { readOptions } from '../runtime/options.js';
import type { Numbers } from '../runtime/read_tensor.js';
import type { AttentionBackwardInputs, AttentionBackwardOptions, FloatDType, GradientName, VarlenBackwardOptions } from '../types/index.js';
import { splitOptions } from './arguments.js';
import { type BackwardCall, backwardPieces, type BackwardTensors, divideBackward, type Gradients, gradientsOf, numbersOf } from './backward.js';
import { runsOf, uncopiedGradients, withAllSlopes } from './backward.js';
import type { PoolCore } from './core.js';
import { sliceOfArray, withArrays } from './option_arrays.js';
import { checkNoOut, type Piece, pieceOf, piecesOfOne, runPieces, runWhole } from './pieces.js';
import { optionsOfGroup, optionsOfSequence, planSequences, rowsOf, type Sequences, sequencesOf } from './sequences.js';
import { cutEvenly, type Range } from './shared/parts.js';
import { callUncopied } from './shared/uncopied.js';
import { reshapedTo, sliceOf, swapped, writeSlice } from './slices.js';
import { withTransfer } from './transfer.js';

interface PackedCall {
  readonly tensors: BackwardTensors;
  /** Has explicit ALiBi slopes of all heads if ALiBi is used. */
  readonly options: VarlenBackwardOptions;
  readonly wanted: readonly GradientName[];
  readonly sequences: Sequences;
}

export async function poolAttentionVarlenBackward(core: PoolCore, ...given: readonly unknown[]): Promise<unknown> {
  const verb = 'attentionVarlenBackward';
  const { args, options: own } = splitOptions(given.slice(1), true);
  return core.call(verb, own, async () => {
    const inputs = readOptions(given[0] as AttentionBackwardInputs, inputNames, 'inputs');
    const options = readOptions(args[0] as VarlenBackwardOptions, varlenBackwardNames, verb, elsewhere);
    checkRope(options);
    checkNoOut(options);
    const planner = core.planner();
    const runtime = planner instanceof Promise ? await planner : planner;
    const { wanted, tensors } = checkCall(runtime, inputs, options);
    const withSlopes = withAllSlopes(runtime, options, tensors.q.shape[1]);
    return withTransfer(core.settings.exchange, own, Object.values(tensors), async (transferred): Promise<unknown> => {
      const whole = () => runWhole(core, { verb, args: [numbersOf(tensors), options], transferred }, own);
      const sequences = sequencesOf([tensors.q, tensors.k, tensors.v], options);
      // Gradients of gains are sums over all tokens and heads.
      const sumsAll = wanted.includes('dQGain') || wanted.includes('dKGain');
      if (sequences === undefined || sumsAll || core.workers.count <= 1) return whole();
      const call: PackedCall = { tensors, options: withSlopes, wanted, sequences };
      const results = gradientsOf(tensors, wanted);
      const pieces = wanted.includes('dSinks') ? piecesOfHeads(core, call, results) : piecesOfSequences(core, runtime, call, results);
      return runPieces<unknown>(pieces, results, own, whole);
    });
  });
}

/** Checks a call without copying its tensors. Throws the same errors as one thread, except that of the LSE. */
function checkCall(runtime: Runtime, inputs: AttentionBackwardInputs, options: VarlenBackwardOptions) {
  return callUncopied(runtime, (operands) => {
    const { query, key, value, cuQ, cuK, masking, extents } = readPacked(runtime, operands, inputs, options);
    const { results, dOut } = readResults(inputs, operands, options.checkLse);
    const shapes = { dQ: query.shape, dK: key.shape, dV: value.shape, dBias: [1] };
    const { record, wanted } = uncopiedGradients(options, shapes, extents, operands);
    wire.attentionVarlenBackward(runtime.args, query, key, value, cuQ, cuK, masking, results, dOut, record);
    operands.run((raw) => raw.checkVarlenBackward());
    return { wanted, tensors: operands.tensors() as unknown as BackwardTensors };
  });
}

function piecesOfSequences(core: PoolCore, runtime: Runtime, call: PackedCall, results: Gradients): Piece[] {
  const { sequences } = call;
  const { q, v } = call.tensors;
  const [, heads = 0, width = 0] = q.shape;
  const { long, groups } = planSequences(core, sequences, 2 * heads * (3 * width + 2 * (v.shape[2] as number)));
  const longPieces = long.flatMap(({ sequence, workers, work }) => {
    const pieces = piecesOfSequence(core, runtime, call, results, { sequence, workers, work });
    // A sequence that cannot be divided is one piece.
    return pieces.length > 0 ? pieces : [pieceOfGroup(core, call, results, [sequence, sequence + 1], work * workers)];
  });
  return [...groups.map(({ range, work }) => pieceOfGroup(core, call, results, range, work)), ...longPieces];
}

function pieceOfGroup(core: PoolCore, call: PackedCall, results: Gradients, range: Range, work: number): Piece {
  const { options, sequences } = call;
  const { q, k, v, out, lse, dOut } = numbersOf(call.tensors);
  const [queries, keys] = [rowsOf(sequences.cuQ, ...range), rowsOf(sequences.cuK, ...range)];
  const inputs = {
    ...{ q: sliceOf(q, queries), k: sliceOf(k, keys), v: sliceOf(v, keys) },
    ...{ out: sliceOf(out, queries), dOut: sliceOf(dOut, queries), lse: sliceOf(lse, [0, q.shape[1] as number], queries) },
  };
  return pieceOf(core, { name: 'attentionVarlenBackward', work, args: [inputs, optionsOfGroup(options, sequences, range)] }, (value) => {
    for (const [name, part] of Object.entries(value as Gradients) as ['dQ' | 'dK' | 'dV', Numbers][]) {
      writeSlice(results[name] as Numbers, part, name === 'dQ' ? queries : keys);
    }
  });
}

/** Divides one sequence, as a call of attentionBackward() with a batch of one. */
function piecesOfSequence(
  core: PoolCore,
  runtime: Runtime,
  call: PackedCall,
  results: Gradients,
  { sequence, workers, work }: { sequence: number; workers: number; work: number },
): Piece[] {
  const { wanted, sequences } = call;
  const { q, k, v, out, lse, dOut } = numbersOf(call.tensors);
  const queries = rowsOf(sequences.cuQ, sequence);
  const keys = rowsOf(sequences.cuK, sequence);
  const byHeads = (tensor: Numbers<FloatDType>, rows: Range): Numbers<FloatDType> => {
    const moved = swapped(sliceOf(tensor, rows));
    return reshapedTo(moved, [1, ...moved.shape]);
  };
  const lseOfRows = sliceOf(lse, [0, q.shape[1] as number], queries);
  const inputs = {
    ...{ q: byHeads(q, queries), k: byHeads(k, keys), v: byHeads(v, keys) },
    ...{ out: byHeads(out, queries), dOut: byHeads(dOut, queries), lse: reshapedTo(lseOfRows, [1, ...lseOfRows.shape]) },
  };
  const options: AttentionBackwardOptions = { ...optionsOfSequence(call.options, sequence), return: wanted };
  const { parts } = divideBackward(runtime, inputs as AttentionBackwardInputs, options);
  const runs = runsOf(core, parts, workers);
  if (runs <= 1) return [];
  const alone: BackwardCall = { ...inputs, wanted, options };
  const own = gradientsOf(alone, wanted);
  const pieces = backwardPieces(core, alone, own, parts, runs).map(({ run }) => run);
  return piecesOfOne(pieces, work, () => {
    for (const [name, whole] of Object.entries(own) as ['dQ' | 'dK' | 'dV', Numbers][]) {
      const rows = swapped(reshapedTo(whole, whole.shape.slice(1)));
      writeSlice(results[name] as Numbers, rows, name === 'dQ' ? queries : keys);
    }
  });
}

/** Divides by heads, each piece with all sequences. Returns none with dropout, whose mask depends on the head index. */
function piecesOfHeads(core: PoolCore, call: PackedCall, results: Gradients): Piece[] {
  const { options, sequences } = call;
  const { q, k, v, out, lse, dOut } = numbersOf(call.tensors);
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
  const group = heads / numKvHeads;
  return cutEvenly(numKvHeads, parts).map((own) => {
    const queryHeads: Range = [own[0] * group, own[1] * group];
    const cut = (tensor: Numbers, rows: number, range: Range) => sliceOf(tensor, [0, rows], range);
    const inputs = {
      ...{ q: cut(q, tokens, queryHeads), k: cut(k, keys, own), v: cut(v, keys, own) },
      ...{ out: cut(out, tokens, queryHeads), dOut: cut(dOut, tokens, queryHeads), lse: sliceOf(lse, queryHeads) },
    };
    const args = [inputs, withArrays(options, { heads: (array) => sliceOfArray(array, queryHeads) })];
    return pieceOf(core, { name: 'attentionVarlenBackward', work: own[1] - own[0], args }, (value) => {
      for (const [name, part] of Object.entries(value as Gradients) as [GradientName, Numbers | Float32Array][]) {
        const whole = results[name] as Numbers;
        if (ArrayBuffer.isView(part)) (results[name] as Float32Array).set(part, queryHeads[0]);
        else writeSlice(whole, part, [0, whole.shape[0] as number], name === 'dQ' ? queryHeads : own);
      }
    });
  });
}
