// The configuration of a module: checks, defaults, and conversion to the record that the core reads.

import { attentionOptions, rotationNames } from '../attention/options.js';
import type * as wire from '../generated/wire.js';
import { MultiheadError } from '../runtime/errors.js';
import type { Operands } from '../runtime/operands.js';
import { checkCount, checkFlag, checkNumber, checkOptions, type Covers, readOptions } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { MultiHeadAttention, MultiHeadAttentionConfig } from '../types/index.js';
import type { Count } from '../types/wire.js';

type Config = MultiHeadAttention['config'];
/** A configuration whose widths and head counts have been checked. */
export type CheckedConfig = Config & Readonly<Record<ExtentName, Count>>;

export const configNames = [
  ...(['embedDim', 'numHeads', 'headDim', 'numKvHeads', 'valueDim'] as const),
  ...(['kdim', 'vdim', 'outDim', 'bias', 'outProj', 'addBiasKv', 'addZeroAttn'] as const),
  ...(['batchFirst', 'sinks', 'qkNorm', 'qkNormEps', 'softcap', 'window', 'rope'] as const),
  ...(['dropout', 'outDropout', 'kvLatentDim', 'qLatentDim', 'ropeHeadDim', 'latentNormEps'] as const),
] as const satisfies readonly (keyof MultiHeadAttentionConfig)[];
true satisfies Covers<MultiHeadAttentionConfig, typeof configNames>;

/** An error message lists at most this many divisors, nearest to the given number. */
const maxDivisors = 16;

function headWidth(embedDim: Count, numHeads: Count): Count {
  if (embedDim % numHeads === 0) return checkCount(embedDim / numHeads, 'headDim');
  const divisors = new Set<number>();
  for (let n = 1; n * n <= embedDim; n += 1) {
    if (embedDim % n === 0) divisors.add(n).add(embedDim / n);
  }
  const near = [...divisors]
    .sort((a, b) => Math.abs(a - numHeads) - Math.abs(b - numHeads))
    .slice(0, maxDivisors)
    .sort((a, b) => a - b);
  const choices = near.join(', ').replace(/, (\d+)$/, ' or $1');
  throw new MultiheadError('E_OPTION', {
    argument: 'numHeads',
    expected: `a divisor of embedDim = ${embedDim}: ${choices}`,
    got: String(numHeads),
    message:
      `numHeads = ${numHeads} does not divide embedDim = ${embedDim}; ` +
      `use ${choices}, or give headDim`,
  });
}

/** Checks types and fills in defaults; the core checks most values. Throws `E_OPTION`. */
export function checkConfig(given: MultiHeadAttentionConfig): CheckedConfig {
  const config = readOptions(given, configNames, 'multiHeadAttention');
  const count = (name: CountName, otherwise: Count): Count =>
    config[name] === undefined ? otherwise : checkCount(config[name], name);
  const flag = (name: FlagName, otherwise: boolean): boolean =>
    config[name] === undefined ? otherwise : checkFlag(config[name], name);

  const embedDim = checkCount(config.embedDim, 'embedDim');
  const numHeads = checkCount(config.numHeads, 'numHeads');
  const headDim =
    config.headDim === undefined
      ? headWidth(embedDim, numHeads)
      : checkCount(config.headDim, 'headDim');
  const kvLatentDim = count('kvLatentDim', 0);
  const ropeHeadDim = count('ropeHeadDim', 0);
  if (kvLatentDim === 0) {
    for (const name of ['qLatentDim', 'ropeHeadDim', 'latentNormEps'] as const) {
      if (config[name] !== undefined) throw without(name, 'no kvLatentDim');
    }
  }
  // The core reports the error if ropeHeadDim is too large.
  const valueDim = count('valueDim', checkCount(Math.max(headDim - ropeHeadDim, 1), 'valueDim'));
  const outProj = flag('outProj', true);
  if (!outProj && config.outDim !== undefined) throw without('outDim', 'outProj: false');
  const projected = config.outDim === undefined ? embedDim : checkCount(config.outDim, 'outDim');
  const qkNorm = flag('qkNorm', false);
  const { qkNormEps, latentNormEps = 1e-6, softcap = 0, window, rope } = config;
  const { dropout = 0, outDropout = 0 } = config;
  if (!qkNorm && qkNormEps !== undefined) throw without('qkNormEps', 'qkNorm: false');
  if (window !== undefined) checkOptions(window, ['left', 'right'], 'window', { align: positionsOfCalls });
  const positions = { qPositions: positionsOfCalls, kPositions: positionsOfCalls };
  if (rope !== undefined) checkOptions(rope, rotationNames, 'rope', positions);
  return {
    ...{ embedDim, numHeads, headDim, valueDim, outProj, qkNorm, window, rope },
    ...{ kvLatentDim, ropeHeadDim, qLatentDim: count('qLatentDim', 0) },
    latentNormEps: checkNumber(latentNormEps, 'latentNormEps'),
    numKvHeads: count('numKvHeads', numHeads),
    kdim: count('kdim', embedDim),
    vdim: count('vdim', embedDim),
    outDim: outProj ? projected : checkCount(numHeads * valueDim, 'outDim'),
    bias: flag('bias', true),
    addBiasKv: flag('addBiasKv', false),
    addZeroAttn: flag('addZeroAttn', false),
    batchFirst: flag('batchFirst', true),
    sinks: flag('sinks', false),
    qkNormEps: checkBelow(Infinity, qkNormEps ?? 1e-6, 'qkNormEps', 'a finite number ≥ 0'),
    softcap: checkNumber(softcap, 'softcap'),
    dropout: checkBelow(1, dropout, 'dropout', '0 ≤ p < 1'),
    outDropout: checkNumber(outDropout, 'outDropout'),
  };
}

/**
 * Checks a number ≥ 0 and below `limit`. Checked here, because the core's error would use the option's name in a call.
 */
function checkBelow(limit: number, value: unknown, argument: string, expected: string): number {
  const number = checkNumber(value, argument, expected);
  if (number >= 0 && number < limit) return number;
  throw new MultiheadError('E_OPTION', { argument, expected, got: describe(number) });
}

type CountName =
  'numKvHeads' | 'valueDim' | 'kdim' | 'vdim' | 'kvLatentDim' | 'qLatentDim' | 'ropeHeadDim';

type ExtentName = CountName | 'embedDim' | 'numHeads' | 'headDim' | 'outDim';

type FlagName = {
  [N in keyof Config]: Config[N] extends boolean ? N : never;
}[keyof Config];

const positionsOfCalls = 'positions are those of each call';

const without = (argument: string, other: string): MultiheadError =>
  new MultiheadError('E_OPTION', { argument, expected: `none with ${other}`, got: 'one' });

/** Converts a checked configuration to the core's record. Throws `E_OPTION`. */
export function moduleRecord(config: CheckedConfig, operands: Operands): wire.MultiHeadAttentionConfig {
  const { embedDim: width, numHeads: heads, softcap, window, rope } = config;
  const extents = { batch: 1, heads, queries: 1, keys: 1, width };
  const options = attentionOptions({ softcap, window, rope }, operands, extents);
  const { windowLeft, windowRight } = options;
  return { ...config, windowLeft, windowRight, softcap: options.softcap, rope: options.rope };
}
