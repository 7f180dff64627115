// mh.latentAttention: attention with the keys and values of all heads made from one latent per token.

import { latentForms } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { MultiheadError } from '../runtime/errors.js';
import { call, checkRank, type Runtime } from '../runtime/operands.js';
import { checkChoice, type Covers, namesOf, readOptions } from '../runtime/options.js';
import type { AttentionResult, LatentAttentionInputs, LatentAttentionOptions } from '../types/index.js';
import type { Operand } from '../types/wire.js';
import { attentionOptions, maskNames } from './options.js';
import { outputShapes, prepareOutputs } from './outputs.js';

/** The inputs and their axes, in the order in which they are checked. */
const inputAxes = {
  qNope: '(B, H, N_q, d_nope)',
  qRope: '(B, H, N_q, d_rope)',
  latent: '(B, N_k, rank)',
  kRope: '(B, N_k, d_rope)',
  wUk: '(H, d_nope, rank)',
  wUv: '(H, d_v, rank)',
} as const satisfies Record<keyof LatentAttentionInputs, string>;
type InputName = keyof typeof inputAxes;
const inputNames = Object.keys(inputAxes) as InputName[];

const forms = namesOf(latentForms);

const optionNames = [
  'form',
  ...maskNames.filter((name) => name !== 'rope' && name !== 'qkNorm'),
  ...(['return', 'out'] as const),
] as const satisfies readonly (keyof LatentAttentionOptions)[];
true satisfies Covers<LatentAttentionOptions, typeof optionNames>;
const elsewhere = {
  rope: 'qRope and kRope come rotated: use rotate()',
  qkNorm: 'normalize before the call',
};

export function latentAttention<R extends readonly ('lse' | 'weights')[]>(
  runtime: Runtime,
  givenInputs: LatentAttentionInputs,
  given: LatentAttentionOptions<R>,
): AttentionResult<R> {
  const inputs = readOptions(givenInputs, inputNames, 'inputs');
  const options = readOptions(given, optionNames, 'latentAttention', elsewhere);
  const form = checkChoice(options.form, forms, 'form');

  return call(runtime, (operands) => {
    const input = (name: InputName): Operand<'f32'> => {
      const operand = operands.input(inputs[name], ['f32'], name);
      checkRank(operand, inputAxes[name], name);
      return operand;
    };
    const qNope = input('qNope');
    const qRope = input('qRope');
    const latent = input('latent');
    const kRope = input('kRope');
    const wUk = input('wUk');
    const wUv = input('wUv');
    const [batch = 0, heads = 0, queries = 0, width = 0] = qNope.shape;
    const keys = latent.shape[1] ?? 0;
    const extents = { batch, heads, queries, keys, width };
    const masking = attentionOptions(options, operands, extents);

    const shapes = outputShapes(extents, wUv.shape[1] ?? 0);
    const outputs = prepareOutputs(options, ['lse', 'weights'], shapes, operands);
    if (outputs.result.out.dtype !== 'f32') {
      throw new MultiheadError('E_OPTION', {
        argument: 'out',
        expected: 'a tensor of dtype "f32"',
        got: `"${outputs.result.out.dtype}"`,
      });
    }
    const { args, raw } = runtime;
    const record = { qNope, qRope, latent, kRope, wUk, wUv };
    wire.latentAttention(args, latentForms[form], record, masking, outputs.record);
    operands.run(() => raw.latentAttention());
    return outputs.result as AttentionResult<R>;
  });
}
