// Configurations of blocks and transformers: checks, defaults, and conversion to the core's records.

import { activations, norms, parameterNames, type ParameterNames as ParameterNamesCode } from '../generated/tables.js';
import type * as wire from '../generated/wire.js';
import { MultiheadError } from '../runtime/errors.js';
import type { Operands } from '../runtime/operands.js';
import {
  checkChoice,
  checkCount,
  checkFlag,
  checkNumber,
  copyOf,
  type Covers,
  namesOf,
  readOptions,
} from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type {
  Activation,
  LoadStateDictOptions,
  Norm,
  ParameterNames,
  StateDict,
  Transformer,
  TransformerBlock,
  TransformerBlockConfig,
  TransformerConfig,
} from '../types/index.js';
import type { Count } from '../types/wire.js';
import { checkConfig, type CheckedConfig, configNames, moduleRecord } from './config.js';

/** A configuration whose widths and counts have been checked. */
export type CheckedBlockConfig = TransformerBlock['config'] &
  Omit<CheckedConfig, (typeof outside)[number]> & { readonly mlpDim: Count | undefined };
export type CheckedModelConfig = Transformer['config'] &
  CheckedBlockConfig &
  Readonly<Record<'numLayers' | 'vocabSize' | 'numReadouts', Count>> & { readonly maxPositions: Count | undefined };

const activationNames = namesOf(activations) satisfies readonly Activation[];
const normNames = namesOf(norms) satisfies readonly Norm[];
const namings = namesOf(parameterNames) satisfies readonly ParameterNames[];

/** Options of a module that a block lacks: in a block all tokens have one width, and the batch is first. */
const outside = ['kdim', 'vdim', 'outDim', 'batchFirst'] as const;
const elsewhere = {
  kdim: 'a block has embedDim',
  vdim: 'a block has embedDim',
  outDim: 'a block has embedDim',
  batchFirst: 'blocks are batch-first',
};

const aroundAttention = [
  ...(['mlpDim', 'activation', 'gated', 'mlpBias', 'norm', 'normFirst', 'normEps'] as const),
  ...(['normAffine', 'residualDropout'] as const),
] as const satisfies readonly (keyof TransformerBlockConfig)[];
const blockNames = [
  ...configNames.filter((name) => !outside.some((not) => not === name)),
  ...aroundAttention,
];
true satisfies Covers<TransformerBlockConfig, typeof blockNames>;
const aroundBlocks = [
  ...(['numLayers', 'vocabSize', 'maxPositions', 'finalNorm', 'tiedOutput', 'causal'] as const),
  ...(['numReadouts', 'embeddingDropout'] as const),
] as const satisfies readonly (keyof TransformerConfig)[];
const modelNames = [...aroundBlocks, ...blockNames];
true satisfies Covers<TransformerConfig, typeof modelNames>;

const without = <C extends object, N extends keyof C>(config: C, names: readonly N[]) =>
  Object.fromEntries(
    Object.entries(config).filter(([name]) => !names.some((each) => each === name)),
  ) as Omit<C, N>;

/** Throws `E_OPTION`. */
export function checkBlockConfig(config: TransformerBlockConfig): CheckedBlockConfig {
  return blockConfig(readOptions(config, blockNames, 'transformerBlock', elsewhere));
}

function blockConfig(config: TransformerBlockConfig): CheckedBlockConfig {
  const attention = without(checkConfig(without(config, aroundAttention)), outside);
  const { mlpDim, activation = 'gelu', gated = false, mlpBias = true } = config;
  const { norm = 'layerNorm', normFirst = true, normEps = 1e-5 } = config;
  const { normAffine = true, residualDropout = 0 } = config;
  if (mlpDim === undefined) refuseWithoutMlp(config);
  return {
    ...attention,
    mlpDim: mlpDim === undefined ? undefined : checkCount(mlpDim, 'mlpDim'),
    activation: checkChoice(activation, activationNames, 'activation'),
    gated: checkFlag(gated, 'gated'),
    mlpBias: checkFlag(mlpBias, 'mlpBias'),
    norm: checkChoice(norm, normNames, 'norm'),
    normFirst: checkFlag(normFirst, 'normFirst'),
    normEps: checkNumber(normEps, 'normEps'),
    normAffine: checkFlag(normAffine, 'normAffine'),
    residualDropout: checkNumber(residualDropout, 'residualDropout'),
  };
}

function refuseWithoutMlp(config: TransformerBlockConfig): void {
  for (const name of ['activation', 'gated', 'mlpBias'] as const) {
    if (config[name] === undefined) continue;
    throw new MultiheadError('E_OPTION', {
      argument: name,
      expected: 'none without mlpDim',
      got: describe(config[name]),
    });
  }
}

/** Throws `E_OPTION`. */
export function checkModelConfig(given: TransformerConfig): CheckedModelConfig {
  const config = readOptions(given, modelNames, 'transformer', elsewhere);
  const { maxPositions, finalNorm = true, tiedOutput = false, causal = true } = config;
  const { numReadouts = 1, embeddingDropout = 0 } = config;
  return {
    ...blockConfig(without(config, aroundBlocks)),
    numLayers: checkCount(config.numLayers, 'numLayers'),
    vocabSize: checkCount(config.vocabSize, 'vocabSize'),
    maxPositions: maxPositions === undefined ? undefined : checkCount(maxPositions, 'maxPositions'),
    finalNorm: checkFlag(finalNorm, 'finalNorm'),
    tiedOutput: checkFlag(tiedOutput, 'tiedOutput'),
    causal: checkFlag(causal, 'causal'),
    numReadouts: checkCount(numReadouts, 'numReadouts'),
    embeddingDropout: checkNumber(embeddingDropout, 'embeddingDropout'),
  };
}

/** Converts a checked configuration to the core's record. Throws `E_OPTION`. */
export function blockRecord(config: CheckedBlockConfig, operands: Operands): wire.TransformerBlockConfig {
  const { embedDim, numHeads, valueDim, outProj } = config;
  const outDim = outProj ? embedDim : checkCount(numHeads * valueDim, 'outDim');
  const tokens = { kdim: embedDim, vdim: embedDim, outDim, batchFirst: true };
  const { mlpDim = 0, gated, mlpBias, normFirst, normEps } = config;
  const { normAffine, residualDropout } = config;
  return {
    attention: moduleRecord({ ...config, ...tokens }, operands),
    activation: activations[config.activation],
    norm: norms[config.norm],
    ...{ mlpDim, gated, mlpBias, normFirst, normEps, normAffine, residualDropout },
  };
}

/** Converts a checked configuration to the core's record. Throws `E_OPTION`. */
export function modelRecord(config: CheckedModelConfig, operands: Operands): wire.TransformerConfig {
  const { numLayers, vocabSize, maxPositions = 0, finalNorm, tiedOutput, causal } = config;
  const { numReadouts, embeddingDropout } = config;
  return {
    block: blockRecord(config, operands),
    ...{ numLayers, vocabSize, maxPositions, finalNorm, tiedOutput, causal },
    ...{ numReadouts, embeddingDropout },
  };
}

/** Converts a naming scheme to its number in the core. Throws `E_OPTION`. */
export const namesCode = (names: unknown = 'torch'): ParameterNamesCode =>
  parameterNames[checkChoice(names, namings, 'names')];

/** Returns the number of the naming scheme, and the tensors of `dict` that the core needs. Throws `E_OPTION`. */
export function toLoad(
  given: StateDict,
  options: LoadStateDictOptions,
  tiedOutput: boolean,
): { names: ParameterNamesCode; dict: StateDict } {
  const { names = 'torch' } = readOptions(options, ['names'], 'loadStateDict');
  const code = namesCode(names);
  const dict = copyOf(given, 'stateDict', []);
  if (typeof dict !== 'object' || dict === null) return { names: code, dict };
  // Skip these tensors, which the core would ignore: they may be large, and copying them costs memory.
  const output = names === 'gpt2' ? 'lm_head.weight' : 'output.weight';
  const entries = Object.entries(dict).filter(
    ([name]) =>
      !(names === 'gpt2' && /(^|\.)attn\.(masked_)?bias$/.test(name)) &&
      !(tiedOutput && name === output),
  );
  return { names: code, dict: Object.fromEntries(entries) };
}
