// mh.latentAttention: attention with the keys and values of all heads made from one latent per token.

import { latentForms } from '../generated/tables.js';
import * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { call, checkRank, type Runtime } from '../runtime/operands.js';
import { checkChoice, type Names, namesOf, plain, readOptions, without } from '../runtime/options.js';
import type { AttentionResult, LatentAttentionInputs, LatentAttentionOptions } from '../types/index.js';
import type { Operand } from '../types/wire.js';
import { attentionOptions, attentionSchema } from './options.js';
import { outputShapes, prepareOutputs } from './outputs.js';

/** The inputs and their axes, in the order in which they are checked. */
const inputs = {
  qNope: { axes: '(B, H, N_q, d_nope)' },
  qRope: { axes: '(B, H, N_q, d_rope)' },
  latent: { axes: '(B, N_k, rank)' },
  kRope: { axes: '(B, N_k, d_rope)' },
  wUk: { axes: '(H, d_nope, rank)' },
  wUv: { axes: '(H, d_v, rank)' },
} satisfies Names<LatentAttentionInputs>;

const forms = namesOf(latentForms);

const elsewhere = {
  rope: 'qRope and kRope come rotated: use rotate()',
  qkNorm: 'normalize before the call',
};
const optionNames = {
  form: plain,
  ...without(attentionSchema, elsewhere),
  ...{ return: plain, out: plain },
} satisfies Names<LatentAttentionOptions>;

export function latentAttention<R extends readonly ('lse' | 'weights')[]>(
  runtime: Runtime,
  givenInputs: LatentAttentionInputs,
  givenOptions: LatentAttentionOptions<R>,
): AttentionResult<R> {
  const given = readOptions(givenInputs, inputs, 'inputs');
  const options = readOptions(givenOptions, optionNames, 'latentAttention', elsewhere);
  const form = checkChoice(options.form, forms, 'form');

  return call(runtime, (operands) => {
    const input = (name: keyof typeof inputs): Operand<'f32'> => {
      const operand = operands.input(given[name], ['f32'], name);
      checkRank(operand, inputs[name].axes, name);
      return operand;
    };
    const record = {
      ...{ qNope: input('qNope'), qRope: input('qRope'), latent: input('latent'), kRope: input('kRope') },
      ...{ wUk: input('wUk'), wUv: input('wUv') },
    };
    const [batch = 0, heads = 0, queries = 0, width = 0] = record.qNope.shape;
    const keys = record.latent.shape[1] ?? 0;
    const extents = { batch, heads, queries, keys, width };
    const masking = attentionOptions(options, operands, extents);

    const shapes = outputShapes(extents, record.wUv.shape[1] ?? 0);
    const outputs = prepareOutputs(options, ['lse', 'weights'], shapes, operands);
    if (outputs.result.out.dtype !== 'f32') {
      throw optionError('out', 'a tensor of dtype "f32"', `"${outputs.result.out.dtype}"`);
    }
    wire.latentAttention(runtime.args, latentForms[form], record, masking, outputs.record);
    operands.run((raw) => raw.latentAttention());
    return outputs.result as AttentionResult<R>;
  });
}
