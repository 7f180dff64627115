// Configurations of blocks and transformers: checks, defaults, and conversion to the core's records.

import { activations, norms, parameterNames, type ParameterNames as ParameterNamesCode } from '../generated/tables.js';
import type * as wire from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import type { Operands } from '../runtime/operands.js';
import { checkChoice, checkCount, type Names, namesOf, plain, readOptions, without } from '../runtime/options.js';
import { choice, count, flag, number, readSettings, required } from '../runtime/settings.js';
import { describe } from '../runtime/tensor.js';
import type { Activation, LoadStateDictOptions, Norm, ParameterNames, StateDict, Transformer, TransformerBlock } from '../types/index.js';
import type { TransformerBlockConfig, TransformerConfig } from '../types/index.js';
import type { Count } from '../types/wire.js';
import { checkConfig, type CheckedConfig, configSchema, moduleRecord } from './config.js';

/** A configuration whose widths and counts have been checked. */
export type CheckedBlockConfig = TransformerBlock['config'] & Omit<CheckedConfig, keyof typeof elsewhere> & { readonly mlpDim: Count | undefined };
export type CheckedModelConfig = Transformer['config'] &
  CheckedBlockConfig &
  Readonly<Record<'numLayers' | 'vocabSize' | 'numReadouts', Count>> & { readonly maxPositions: Count | undefined };

const activationNames = namesOf(activations) satisfies readonly Activation[];
const normNames = namesOf(norms) satisfies readonly Norm[];
const namings = namesOf(parameterNames) satisfies readonly ParameterNames[];

/** Options of a module that a block lacks: in a block all tokens have one width, and the batch is first. */
const elsewhere = {
  kdim: 'a block has embedDim',
  vdim: 'a block has embedDim',
  outDim: 'a block has embedDim',
  batchFirst: 'blocks are batch-first',
};

const aroundAttention = {
  mlpDim: count(undefined),
  activation: choice(activationNames, 'gelu'),
  gated: flag(false),
  mlpBias: flag(true),
  norm: choice(normNames, 'layerNorm'),
  normFirst: flag(true),
  normEps: number(1e-5),
  normAffine: flag(true),
  residualDropout: number(0),
};
const blockNames = {
  ...without(configSchema, elsewhere),
  ...aroundAttention,
} satisfies Names<TransformerBlockConfig>;
const aroundBlocks = {
  numLayers: required,
  vocabSize: required,
  maxPositions: count(undefined),
  finalNorm: flag(true),
  tiedOutput: flag(false),
  causal: flag(true),
  numReadouts: count(1),
  embeddingDropout: number(0),
};
const modelNames = { ...aroundBlocks, ...blockNames } satisfies Names<TransformerConfig>;

/** Throws `E_OPTION`. */
export const checkBlockConfig = (config: TransformerBlockConfig): CheckedBlockConfig =>
  blockConfig(readOptions(config, blockNames, 'transformerBlock', elsewhere));

function blockConfig(config: TransformerBlockConfig): CheckedBlockConfig {
  const attention = without(checkConfig(without(config, aroundAttention)), elsewhere);
  if (config.mlpDim === undefined) refuseWithoutMlp(config);
  return { ...attention, ...readSettings(config, aroundAttention) };
}

function refuseWithoutMlp(config: TransformerBlockConfig): void {
  for (const name of ['activation', 'gated', 'mlpBias'] as const) {
    if (config[name] === undefined || config[name] === aroundAttention[name].otherwise) continue;
    throw optionError(name, 'none without mlpDim', describe(config[name]));
  }
}

/** Throws `E_OPTION`. */
export function checkModelConfig(given: TransformerConfig): CheckedModelConfig {
  const config = readOptions(given, modelNames, 'transformer', elsewhere);
  return { ...blockConfig(without(config, aroundBlocks)), ...readSettings(config, aroundBlocks) };
}

/** Converts a checked configuration to the core's record. Throws `E_OPTION`. */
export function blockRecord(config: CheckedBlockConfig, operands: Operands): wire.TransformerBlockConfig {
  const { embedDim, numHeads, valueDim, outProj } = config;
  const outDim = outProj ? embedDim : checkCount(numHeads * valueDim, 'outDim');
  const tokens = { kdim: embedDim, vdim: embedDim, outDim, batchFirst: true };
  const { mlpDim = 0 } = config;
  return {
    ...config,
    mlpDim,
    attention: moduleRecord({ ...config, ...tokens }, operands),
    activation: activations[config.activation],
    norm: norms[config.norm],
  };
}

/** Converts a checked configuration to the core's record. Throws `E_OPTION`. */
export function modelRecord(config: CheckedModelConfig, operands: Operands): wire.TransformerConfig {
  const { maxPositions = 0 } = config;
  return { ...config, maxPositions, block: blockRecord(config, operands) };
}

/** Converts a naming scheme to its number in the core. Throws `E_OPTION`. */
export const namesCode = (names: unknown = 'torch'): ParameterNamesCode => parameterNames[checkChoice(names, namings, 'names')];

/** Returns the number of the naming scheme, and the tensors of `dict` that the core needs. Throws `E_OPTION`. */
export function toLoad(dict: StateDict, options: LoadStateDictOptions, tiedOutput: boolean): { names: ParameterNamesCode; dict: StateDict } {
  const { names = 'torch' } = readOptions(options, { names: plain }, 'loadStateDict');
  const code = namesCode(names);
  if (typeof dict !== 'object' || dict === null) return { names: code, dict };
  // Skip these tensors, which the core would ignore: they may be large, and copying them costs memory.
  const output = names === 'gpt2' ? 'lm_head.weight' : 'output.weight';
  const entries = Object.entries(dict).filter(
    ([name]) => !(names === 'gpt2' && /(^|\.)attn\.(masked_)?bias$/.test(name)) && !(tiedOutput && name === output),
  );
  return { names: code, dict: Object.fromEntries(entries) };
}
