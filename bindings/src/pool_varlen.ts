// pool.attentionVarlen(): packed sequences are independent of each other, so each worker gets some of them.

import { MultiheadError } from './errors.js';
import { checkTensorLike } from './operands.js';
import { readOptions } from './options.js';
import { packArguments, splitOptions } from './pool_arguments.js';
import type { PoolCore } from './pool_core.js';
import { floatDTypes } from './tensor.js';
import { typedArrayName } from './typed_arrays.js';
import type { DataOf, FloatDType, FloatTensorLike, VarlenOptions } from './types.js';
import { varlenNames } from './varlen.js';

type Inputs = readonly [q: FloatTensorLike, k: FloatTensorLike, v: FloatTensorLike];

interface Sent {
  readonly data: DataOf<FloatDType>;
  readonly shape: readonly number[];
  readonly dtype: FloatDType;
}

interface PackedResult {
  readonly out: Sent;
  readonly lse?: { readonly data: Float32Array; readonly shape: readonly number[]; readonly dtype: 'f32' };
}

export async function poolAttentionVarlen(core: PoolCore, inputs: Inputs, given: object): Promise<PackedResult> {
  const { args, options: own } = splitOptions([given]);
  return core.call('attentionVarlen', own, async () => {
    const options = readOptions(args[0] as VarlenOptions, varlenNames, 'attentionVarlen');
    if (options.out !== undefined) {
      throw new MultiheadError('E_OPTION', {
        argument: 'out',
        expected: 'no out: the results come in arrays of their own',
        got: 'one',
      });
    }
    const run = async (of: Inputs, with_: object): Promise<PackedResult> => {
      const packed = packArguments([...of, with_]);
      const task = { kind: 'run', verb: 'attentionVarlen', args: packed.args } as const;
      const { value } = await core.send('attentionVarlen', { ...packed, task }, own.signal);
      return value as PackedResult;
    };
    const pieces = piecesOf(core, inputs, options);
    if (pieces.length <= 1) {
      const result = await run(inputs, options);
      own.progress?.(1, 1);
      return result;
    }
    let done = 0;
    try {
      const parts = await Promise.all(
        pieces.map(async ({ of, options: with_ }) => {
          const part = await run(of, with_);
          own.progress?.((done += 1), pieces.length);
          return part;
        }),
      );
      return joined(parts);
    } catch (error) {
      const code = error instanceof MultiheadError ? error.code : undefined;
      // Of a part, the error would name the shapes of the part.
      if (code === 'E_SHAPE' || code === 'E_OPTION') return run(inputs, options);
      throw error;
    }
  });
}

interface Piece {
  readonly of: Inputs;
  readonly options: object;
}

/** Empty if the call cannot be divided, or is not as it should be: it then runs whole, and is refused there. */
function piecesOf(core: PoolCore, inputs: Inputs, options: VarlenOptions): Piece[] {
  const { cuQ, cuK } = options;
  if (typedArrayName(cuQ) !== 'Int32Array' || typedArrayName(cuK) !== 'Int32Array') return [];
  const sequences = cuQ.length - 1;
  let tensors: Sent[];
  try {
    tensors = inputs.map((each, index) => checkTensorLike(each, floatDTypes, 'qkv'[index] as string));
  } catch {
    return [];
  }
  const [q, k, v] = tensors as [Sent, Sent, Sent];
  if ([q, k, v].some(({ shape }) => shape.length !== 3)) return [];
  if (cuK.length !== cuQ.length || !isCumulative(cuQ, q) || !isCumulative(cuK, k) || v.shape[0] !== k.shape[0]) return [];

  const work = Array.from({ length: sequences }, (_, s) => lengthAt(cuQ, s) * (lengthAt(cuK, s) + 32) + 1);
  const total = work.reduce((sum, each) => sum + each, 0);
  const [, heads = 0, width = 0] = q.shape;
  const operations = 2 * total * heads * (width + (v.shape[2] ?? 0));
  const count = Math.min(core.crew.workers, sequences, Math.floor(operations / core.settings.leastWork));
  const pieces: Piece[] = [];
  let [first, done] = [0, 0];
  for (let s = 0; s < sequences; s += 1) {
    done += work[s] as number;
    if (s + 1 < sequences && done < ((pieces.length + 1) * total) / count) continue;
    pieces.push(pieceOf([q, k, v], options, first, s + 1));
    first = s + 1;
  }
  return pieces;
}

const lengthAt = (cu: Int32Array, s: number): number => (cu[s + 1] as number) - (cu[s] as number);

function isCumulative(cu: Int32Array, { shape }: Sent): boolean {
  return cu[0] === 0 && cu.at(-1) === shape[0] && cu.every((end, s) => s === 0 || end >= (cu[s - 1] as number));
}

/** The sequences first to end − 1. */
function pieceOf([q, k, v]: [Sent, Sent, Sent], options: VarlenOptions, first: number, end: number): Piece {
  const { cuQ, cuK, dropout } = options;
  const rows = ({ data, shape, dtype }: Sent, cu: Int32Array): Sent => {
    const [from, to] = [cu[first] as number, cu[end] as number];
    const row = (shape[1] as number) * (shape[2] as number);
    return { data: data.subarray(from * row, to * row), shape: [to - from, ...shape.slice(1)], dtype };
  };
  const shifted = (cu: Int32Array): Int32Array => cu.slice(first, end + 1).map((each) => each - (cu[first] as number));
  // Sequence s has seed + s · 2³².
  const seed = () => BigInt.asUintN(64, BigInt(dropout?.seed ?? 0) + (BigInt(first) << 32n));
  return {
    of: [rows(q, cuQ), rows(k, cuK), rows(v, cuK)] as unknown as Inputs,
    options: {
      ...{ ...options, cuQ: shifted(cuQ), cuK: shifted(cuK) },
      ...(dropout === undefined ? {} : { dropout: { ...dropout, seed: seed() } }),
    },
  };
}

function joined(parts: readonly PackedResult[]): PackedResult {
  const [{ out, lse }] = parts as [PackedResult];
  const tokens = parts.reduce((sum, part) => sum + (part.out.shape[0] as number), 0);
  const [, heads = 0, width = 0] = out.shape;
  const Same = out.data.constructor as new (length: number) => DataOf<FloatDType>;
  const data = new Same(tokens * heads * width);
  const lses = new Float32Array(lse === undefined ? 0 : heads * tokens);
  let token = 0;
  for (const part of parts) {
    const count = part.out.shape[0] as number;
    data.set(part.out.data, token * heads * width);
    for (let head = 0; lse !== undefined && head < heads; head += 1) {
      const row = (part.lse as { data: Float32Array }).data.subarray(head * count, (head + 1) * count);
      lses.set(row, head * tokens + token);
    }
    token += count;
  }
  return {
    out: { data, shape: [tokens, heads, width], dtype: out.dtype },
    ...(lse === undefined ? {} : { lse: { data: lses, shape: [heads, tokens], dtype: 'f32' } }),
  };
}
