// mh.attention: from options to one call of the Embind module.

import { call, checkRank, type Runtime } from './operands.js';
import { checkNames, checkOptions, maskingArgs, maskNames } from './options.js';
import { notGiven, type WasmTensor } from './tensor.js';
import type { AttentionOptions, AttentionResult, AttentionReturn, TensorLike } from './types.js';

const optionNames = [...maskNames, 'return', 'out'] as const;
const returnNames: readonly AttentionReturn[] = ['lse', 'weights'];

export function attention<R extends readonly AttentionReturn[]>(
  runtime: Runtime,
  q: TensorLike,
  k: TensorLike,
  v: TensorLike,
  options: AttentionOptions<R> = {},
): AttentionResult<R> {
  checkOptions(options, optionNames, 'attention');
  const wanted = checkNames(options.return ?? [], returnNames, 'return');

  return call(runtime, (operands) => {
    const query = operands.input(q, 'f32', 'q');
    const key = operands.input(k, 'f32', 'k');
    const value = operands.input(v, 'f32', 'v');
    checkRank(query, '(B, H_q, N_q, d_k)', 'q');
    checkRank(key, '(B, H_kv, N_k, d_k)', 'k');
    checkRank(value, '(B, H_kv, N_k, d_v)', 'v');
    const masking = maskingArgs(options, operands);

    const rows = query.shape.slice(0, 3);
    const [keys = 0, valueWidth = 0] = value.shape.slice(2);
    const result: { out: WasmTensor<'f32'>; lse?: WasmTensor<'f32'>; weights?: WasmTensor<'f32'> } =
      {
        out: operands.output([...rows, valueWidth], 'out', options.out),
      };
    if (wanted.includes('lse')) result.lse = operands.output(rows, 'lse');
    if (wanted.includes('weights')) result.weights = operands.output([...rows, keys], 'weights');

    const status = runtime.raw.attention({
      ...masking,
      q: query.arg(),
      k: key.arg(),
      v: value.arg(),
      out: result.out.arg(),
      lse: result.lse?.arg() ?? notGiven,
      weights: result.weights?.arg() ?? notGiven,
    });
    operands.check(status);
    return result as AttentionResult<R>;
  });
}
