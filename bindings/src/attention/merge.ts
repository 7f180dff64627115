// mh.mergeAttention: joins two results over disjoint keys.

import * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { call, checkRank, type Runtime } from '../runtime/operands.js';
import { plain, readOptions } from '../runtime/options.js';
import type { PartialAttention, Tensor } from '../types/index.js';

const known = {
  ...{ out: plain, lse: plain },
  ...{ weights: plain, dropoutMask: plain, captures: plain },
};

/** A result of attention() may have more outputs than `out` and `lse`; those are not merged. */
function readPart(given: PartialAttention, argument: string): PartialAttention {
  const part = readOptions(given, known, argument);
  const { out, lse } = part as Partial<PartialAttention>;
  const missing = out === undefined ? 'out' : lse === undefined ? 'lse' : undefined;
  if (missing === undefined) return part;
  throw optionError(`${argument}.${missing}`, "a tensor (attention() gives 'lse' on request)", 'undefined');
}

export function mergeAttention<A extends PartialAttention<Tensor>>(runtime: Runtime, givenA: A, givenB: PartialAttention): A {
  const a = readPart(givenA, 'a');
  const b = readPart(givenB, 'b');
  return call(runtime, (operands) => {
    const outB = operands.input(b.out, ['f32'], 'b.out');
    const lseB = operands.input(b.lse, ['f32'], 'b.lse');
    // Register outputs after the inputs, so that an output that is also an input is an error.
    const outA = operands.writable(a.out, 'f32', 'a.out');
    const lseA = operands.writable(a.lse, 'f32', 'a.lse');
    checkRank(outA, '(B, H_q, N_q, d_v)', 'a.out');
    checkRank(lseA, '(B, H_q, N_q)', 'a.lse');
    checkRank(outB, '(B, H_q, N_q, d_v)', 'b.out');
    checkRank(lseB, '(B, H_q, N_q)', 'b.lse');
    wire.mergeAttention(runtime.args, outA, lseA, outB, lseB);
    operands.run((raw) => raw.mergeAttention());
    return givenA;
  });
}
