// Converts the options of a module's call to the core's records, and makes the output tensors.

import { attentionOptions, attentionSchema, type CallExtents, noOptions, noSeed, seedWords } from '../attention/options.js';
import type * as wire from '../generated/wire.js';
import { noSpan, type Operands, type Runtime } from '../runtime/operands.js';
import { checkFlag, type Names, checkNames, checkNumber, checkOptions, plain, without } from '../runtime/options.js';
import { coreOf } from '../runtime/tensor.js';
import type { ForwardOptions, HeadTools, ModuleBackwardOptions, ModuleOptions, ModuleReturn, Shape, StepOptions } from '../types/index.js';
import type { Int32, Uint32 } from '../types/wire.js';
import type { CheckedConfig } from './config.js';
import { takeTraces, traceBits } from './trace.js';

const toolNames = { scales: plain, skipOutProj: plain, temperature: plain, scaleByEmbedDim: plain } satisfies Names<HeadTools>;

const moduleNames = {
  ...{ return: plain, trace: plain, out: plain, training: plain, dropoutSeed: plain },
  heads: plain,
} satisfies Names<ModuleOptions>;

export const forwardNames = {
  ...attentionSchema,
  ...{ attnMaskBlocked: plain, keyPaddingBlocked: plain, keyPaddingBias: plain },
  ...moduleNames,
} satisfies Names<ForwardOptions>;

export const notInBackward = {
  return: 'backward() gives all gradients',
  trace: 'give it to forward()',
  out: 'backward() makes new tensors',
};
export const backwardNames = without(forwardNames, notInBackward) satisfies Names<ModuleBackwardOptions>;

const inMask = 'give a mask over all tokens so far: true = may attend';
export const notInStep = {
  causal: 'a step is causal',
  window: 'it is part of the module',
  rope: 'it is part of the module, and positions go on from those in the cache',
  kvLengths: 'the cache knows its length',
  attnMaskBlocked: inMask,
  keyPaddingBlocked: inMask,
  keyPaddingBias: 'give a bias over all tokens so far',
};
export const stepNames = without(forwardNames, notInStep) satisfies Names<StepOptions>;

/** The record of no options. */
export const noModuleOptions: Readonly<wire.ModuleOptions> = {
  attention: noOptions,
  attnMaskBlocked: undefined,
  keyPaddingBlocked: undefined,
  keyPaddingBias: undefined,
  training: false,
  dropoutSeed: noSeed,
  headScales: noSpan,
  skipOutProj: false,
  temperature: 1,
  scaleByEmbedDim: false,
};

/**
 * Converts the options. The names in `options` have been checked, the names in `options.heads` not. Throws `E_OPTION`,
 * `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`.
 */
export function moduleOptions(
  options: Omit<ForwardOptions, 'return'>,
  operands: Operands,
  { numHeads: heads, headDim: width }: Pick<CheckedConfig, 'numHeads' | 'headDim'>,
  { batch, queries, keys }: Pick<CallExtents, 'batch' | 'queries' | 'keys'>,
): wire.ModuleOptions {
  const { training = false, dropoutSeed, heads: tools = {} } = options;
  checkOptions(tools, toolNames, 'heads');
  const { scales, skipOutProj = false, temperature = 1, scaleByEmbedDim = false } = tools;
  const blocked = (name: 'attnMaskBlocked' | 'keyPaddingBlocked') => operands.optional(options[name], ['bool'], name);
  return {
    attention: attentionOptions(options, operands, { batch, heads, queries, keys, width }),
    attnMaskBlocked: blocked('attnMaskBlocked'),
    keyPaddingBlocked: blocked('keyPaddingBlocked'),
    keyPaddingBias: operands.optional(options.keyPaddingBias, ['f32'], 'keyPaddingBias'),
    training: checkFlag(training, 'training'),
    dropoutSeed: dropoutSeed === undefined ? noSeed : seedWords(dropoutSeed, 'dropoutSeed'),
    headScales: scales === undefined ? noSpan : operands.optionalSpan(scales, 'f32', 'heads.scales', heads),
    skipOutProj: checkFlag(skipOutProj, 'heads.skipOutProj'),
    temperature: checkNumber(temperature, 'heads.temperature'),
    scaleByEmbedDim: checkFlag(scaleByEmbedDim, 'heads.scaleByEmbedDim'),
  };
}

const moduleReturns: readonly ModuleReturn[] = ['weights', 'meanWeights'];

interface ModuleCall {
  readonly options: ModuleOptions;
  /** `weights`: (B, H, N_q, N), or (H, N_q, N) for a call without a batch. */
  readonly shapes: Readonly<Record<'out' | ModuleReturn, Shape>>;
  write(outputs: wire.MultiHeadAttentionOutputs, steps: Uint32): void;
  run(raw: Runtime['raw']): Int32;
}

/**
 * Runs the call. Register all inputs with `operands` before this call. Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`,
 * `E_MEMORY`.
 */
export function runModule(runtime: Runtime, operands: Operands, { options, shapes, write, run }: ModuleCall) {
  const wanted = checkNames(options.return ?? [], moduleReturns, 'return');
  const bits = traceBits(options.trace);
  const out = operands.output(shapes.out, 'f32', 'out', options.out);
  const [weights, meanWeights] = moduleReturns.map((name) => (wanted.includes(name) ? operands.output(shapes[name], 'f32', name) : undefined));
  write({ out: coreOf(out), weights: coreOf(weights), meanWeights: coreOf(meanWeights) }, bits);
  operands.run(run);
  return operands.disposable({
    output: out,
    trace: options.trace ? takeTraces(runtime)[0] : undefined,
    ...(weights && { weights }),
    ...(meanWeights && { meanWeights }),
  });
}
