// pool.attentionVarlen(): each worker gets some of the packed sequences. A long sequence is divided by heads and query
// rows, like a call of attention().

import { checkRope, elsewhere, varlenNames } from '../attention/varlen.js';
import { MultiheadError } from '../runtime/errors.js';
import type { Runtime } from '../runtime/operands.js';
import { readOptions } from '../runtime/options.js';
import { type Numbers, ReadTensor } from '../runtime/read_tensor.js';
import { floatDTypes } from '../runtime/tensor.js';
import type { AttentionOptions, FloatDType, FloatTensorLike, VarlenOptions } from '../types/index.js';
import { splitOptions } from './arguments.js';
import { JoinedResults, partTasks, piecesOf } from './attention.js';
import type { PoolCore } from './core.js';
import { checkNoOut, type Piece, pieceOf, piecesOfOne, runPieces, runWhole, zeros } from './pieces.js';
import { optionsOfGroup, optionsOfSequence, planSequences, rowsOf, type Sequences, sequencesOf } from './sequences.js';
import type { Range } from './shared/parts.js';
import { reshapedTo, sliceOf, swapped, writeSlice } from './slices.js';
import { withTransfer } from './transfer.js';
import { divideAttention } from './worker/part.js';

interface PackedResult {
  readonly out: Numbers<FloatDType>;
  readonly lse?: Numbers<'f32'>;
}

interface PackedCall {
  readonly q: ReadTensor<FloatDType>;
  readonly k: ReadTensor<FloatDType>;
  readonly v: ReadTensor<FloatDType>;
  readonly options: VarlenOptions;
  readonly sequences: Sequences;
  readonly results: PackedResult;
}

export async function poolAttentionVarlen(
  core: PoolCore,
  [givenQ, givenK, givenV]: readonly FloatTensorLike[],
  given: object,
): Promise<PackedResult> {
  const { args, options: own } = splitOptions([given], true);
  return core.call('attentionVarlen', own, async () => {
    const options = readOptions(args[0] as VarlenOptions, varlenNames, 'attentionVarlen', elsewhere);
    checkRope(options);
    checkNoOut(options);
    const q = new ReadTensor(givenQ, floatDTypes, 'q');
    const k = new ReadTensor(givenK, floatDTypes, 'k');
    const v = new ReadTensor(givenV, [k.dtype], 'v');
    const sequences = sequencesOf([q, k, v], options);
    const results = resultsOf(q, v, options);
    const planner = core.planner();
    const runtime = planner instanceof Promise ? await planner : planner;
    return withTransfer(core.settings.exchange, own, [q, k, v], async (transferred): Promise<PackedResult> => {
      const whole = () => {
        const args = [q.numbers(), k.numbers(), v.numbers(), options];
        return runWhole(core, { verb: 'attentionVarlen', args, transferred }, own) as Promise<PackedResult>;
      };
      if (sequences === undefined || results === undefined || core.workers.count <= 1) return whole();
      let pieces: Piece[];
      try {
        pieces = piecesOfCall(core, runtime, { q, k, v, options, sequences, results });
      } catch (error) {
        if (error instanceof MultiheadError && error.code === 'E_MEMORY') throw error;
        // An error of a piece would name the shapes of one sequence.
        return whole();
      }
      return runPieces(pieces, results, own, whole);
    });
  });
}

/** Allocates the results. Undefined if the options are invalid. */
function resultsOf(q: ReadTensor, v: ReadTensor, { return: names = [], outDtype = 'f32' }: VarlenOptions) {
  if (!Array.isArray(names) || names.some((name) => name !== 'lse') || !floatDTypes.includes(outDtype)) return undefined;
  const [tokens = 0, heads = 0] = q.shape;
  const out = zeros(outDtype, [tokens, heads, v.shape[2] ?? 0], 'out');
  return names.length === 0 ? { out } : { out, lse: zeros('f32', [heads, tokens], 'lse') };
}

function piecesOfCall(core: PoolCore, runtime: Runtime, call: PackedCall): Piece[] {
  const { q, v, sequences } = call;
  const [, heads = 0, width = 0] = q.shape;
  const { long, groups } = planSequences(core, sequences, 2 * heads * (width + (v.shape[2] ?? 0)));
  const one = groups.length === 0 && long.length === 1 && long[0]?.workers === 1;
  if (one || groups.length + long.length === 0) return [];
  return [
    ...groups.map(({ range, work }) => pieceOfGroup(core, call, range, work)),
    ...long.flatMap(({ sequence, workers, work }) => piecesOfSequence(core, runtime, call, { sequence, workers, work })),
  ];
}

/** Makes a piece of several undivided sequences. */
function pieceOfGroup(core: PoolCore, call: PackedCall, range: Range, work: number): Piece {
  const { q, k, v, options, sequences, results } = call;
  const [queries, keys] = [rowsOf(sequences.cuQ, ...range), rowsOf(sequences.cuK, ...range)];
  const slices = [sliceOf(q.numbers(), queries), sliceOf(k.numbers(), keys), sliceOf(v.numbers(), keys)];
  return pieceOf(core, { name: 'attentionVarlen', work, args: [...slices, optionsOfGroup(options, sequences, range)] }, (value) => {
    const { out, lse } = value as PackedResult;
    writeSlice(results.out, out, queries);
    if (lse !== undefined && results.lse !== undefined) writeSlice(results.lse, lse, [0, lse.shape[0] as number], queries);
  });
}

/** Divides one sequence, as a call of attention() with a batch of one. */
function piecesOfSequence(
  core: PoolCore,
  runtime: Runtime,
  { q, k, v, options, sequences, results }: PackedCall,
  { sequence, workers, work }: { sequence: number; workers: number; work: number },
): Piece[] {
  const queries = rowsOf(sequences.cuQ, sequence);
  const keys = rowsOf(sequences.cuK, sequence);
  const byHeads = (tensor: ReadTensor<FloatDType>, rows: Range): FloatTensorLike => {
    const { data, shape, dtype } = swapped(sliceOf(tensor.numbers(), rows));
    return { data, shape: [1, ...shape], dtype } as FloatTensorLike;
  };
  const own = optionsOfSequence(options, sequence) as AttentionOptions;
  const call = divideAttention(runtime, byHeads(q, queries), byHeads(k, keys), byHeads(v, keys), own, true);
  const joined = new JoinedResults(call);
  const ranges = piecesOf(core, call, own, workers);
  return piecesOfOne(partTasks(core, call, own, ranges, joined), work, () => {
    const { out, lse } = joined.result as unknown as PackedResult;
    writeSlice(results.out, swapped(reshapedTo(out, out.shape.slice(1))), queries);
    if (lse === undefined || results.lse === undefined) return;
    const heads = lse.shape[1] as number;
    writeSlice(results.lse, reshapedTo(lse, lse.shape.slice(1)), [0, heads], queries);
  });
}
