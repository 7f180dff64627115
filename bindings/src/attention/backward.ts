// mh.attentionBackward: gradients of mh.attention.

import * as wire from '../generated/wire.js';
import { call, type Runtime } from '../runtime/operands.js';
import { checkWhole, type Names, readOptions } from '../runtime/options.js';
import type { AttentionBackwardInputs, AttentionBackwardOptions, AttentionBackwardResult, GradientName } from '../types/index.js';
import { attentionInputs } from './attention.js';
import { gradientNames, inputNames, prepareGradients, readResults, withVectors } from './gradients.js';
import { attentionOptions, attentionSchema } from './options.js';

export const backwardNames = { ...attentionSchema, ...gradientNames } satisfies Names<AttentionBackwardOptions>;
export const elsewhereThanBackward = {
  outDtype: 'gradients are f32',
  capture: 'attention() captures scores',
};

export const wholeCall: Readonly<wire.BackwardPart> = { firstBatch: 0, firstHead: 0, jobs: 0 };

/**
 * @param part position of the inputs in a whole call, if they are only some of its batch entries and heads; for a pool
 */
export function attentionBackward<const R extends readonly GradientName[] | undefined>(
  runtime: Runtime,
  givenInputs: AttentionBackwardInputs,
  given: AttentionBackwardOptions<R> = {},
  part: Readonly<Record<keyof wire.BackwardPart, number>> = wholeCall,
): AttentionBackwardResult<R> {
  const inputs = readOptions(givenInputs, inputNames, 'inputs');
  const options = readOptions(given, backwardNames, 'attentionBackward', elsewhereThanBackward);

  return call(runtime, (operands) => {
    const { query, key, value, extents } = attentionInputs(operands, inputs.q, inputs.k, inputs.v);
    const { results, dOut } = readResults(inputs, operands, options.checkLse);
    const masking = attentionOptions(options, operands, extents);

    const shapes = {
      dQ: query.shape,
      dK: key.shape,
      dV: value.shape,
      // The core rejects dBias without a bias, so any shape will do here.
      dBias: masking.bias?.shape ?? [1],
    };
    const gradients = prepareGradients(options, shapes, extents, operands);
    wire.attentionBackward(runtime.args, query, key, value, masking, results, dOut, gradients.record, {
      firstBatch: checkWhole(part.firstBatch, 'firstBatch'),
      firstHead: checkWhole(part.firstHead, 'firstHead'),
      jobs: checkWhole(part.jobs, 'jobs'),
    });
    operands.run((raw) => raw.attentionBackward());
    return withVectors(gradients, runtime.heap) as AttentionBackwardResult<R>;
  });
}
