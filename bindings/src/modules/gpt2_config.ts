// gpt2Config(): the configuration of a GPT-2 model, from its parameters.

import { optionError, shapeError } from '../runtime/errors.js';
import { checkCount } from '../runtime/options.js';
import { checkShape, describe } from '../runtime/tensor.js';
import type { StateDict, TransformerConfig } from '../types/index.js';

const missing = (tensor: unknown): string => (tensor === undefined ? 'none' : describe(tensor));

/**
 * Derives the configuration of a GPT-2 model from the shapes of its parameters and `numHeads`, for
 * {@link Multihead.transformer}. Needs no `load()`.
 *
 * @param dict under GPT-2's own names: see {@link ParameterNames}
 * @throws {MultiheadError} `E_SHAPE` naming a matrix that is missing; `E_OPTION` if `dict` is no state dict, or
 * `numHeads` no whole number ≥ 1
 */
export function gpt2Config(dict: StateDict, numHeads: number): TransformerConfig {
  if (typeof dict !== 'object' || dict === null || Array.isArray(dict)) {
    throw optionError('stateDict', 'an object with a tensor for each name', describe(dict));
  }
  const entries = dict as Readonly<Record<string, unknown>>;
  const prefix = Object.hasOwn(entries, 'transformer.wte.weight') ? 'transformer.' : '';
  const extents = (name: string): [number, number] => {
    const tensor = Object.hasOwn(entries, prefix + name) ? entries[prefix + name] : undefined;
    const { shape } = Object(tensor) as { shape?: unknown };
    if (Array.isArray(shape) && shape.length === 2) {
      return checkShape(shape, prefix + name) as [number, number];
    }
    throw shapeError('stateDict', `a matrix ${prefix}${name}`, Array.isArray(shape) ? `one of ${shape.length} extents` : missing(tensor));
  };
  const [vocabSize, embedDim] = extents('wte.weight');
  const [maxPositions] = extents('wpe.weight');
  const [, mlpDim] = extents('h.0.mlp.c_fc.weight');
  let numLayers = 1;
  while (Object.hasOwn(entries, `${prefix}h.${numLayers}.ln_1.weight`)) numLayers += 1;
  return {
    ...{ numLayers, vocabSize, maxPositions, embedDim, mlpDim },
    numHeads: checkCount(numHeads, 'numHeads'),
    activation: 'geluTanh',
    tiedOutput: true,
  };
}
