// The configuration of a module: checks, defaults, and conversion to the record that the core reads.

import { attentionOptions, modelSchema, noOptions, rotationNames } from '../attention/options.js';
import type * as wire from '../generated/wire.js';
import { MultiheadError, optionError } from '../runtime/errors.js';
import { divisorsOf, listed } from '../runtime/messages.js';
import type { Operands } from '../runtime/operands.js';
import { checkCount, type Names, plain, readOptions } from '../runtime/options.js';
import { count, finite, flag, number, probability, readSettings, required, type Setting } from '../runtime/settings.js';
import type { ModelOptions, MultiHeadAttentionConfig, RopeRotation } from '../types/index.js';
import type { Count } from '../types/wire.js';

/** A configuration whose widths and head counts have been checked. */
export type CheckedConfig = ReturnType<typeof checkConfig>;

type WindowSides = Exclude<MultiHeadAttentionConfig['window'], undefined>;
const positionsOfCalls = 'positions are those of each call';

/** An object of options, without those `ofCalls`. */
const options = <T extends object>(inner: Names<T>, ofCalls: Readonly<Record<string, string>>): Setting<T | undefined> => ({
  inner,
  otherwise: undefined,
  read: (value, name) => readOptions(value as T, inner, name, ofCalls),
});

/** The numbers that calls take too, with the defaults of calls. */
const modelSettings = Object.fromEntries((Object.keys(modelSchema) as (keyof ModelOptions)[]).map((name) => [name, number(noOptions[name])])) as {
  [N in keyof ModelOptions]-?: Setting<number>;
};

/** Defaults that depend on other options are undefined here. */
export const configSchema = {
  embedDim: required,
  numHeads: required,
  headDim: count(undefined),
  numKvHeads: count(undefined),
  valueDim: count(undefined),
  kdim: count(undefined),
  vdim: count(undefined),
  outDim: count(undefined),
  bias: flag(true),
  outProj: flag(true),
  addBiasKv: flag(false),
  addZeroAttn: flag(false),
  batchFirst: flag(true),
  sinks: flag(false),
  qkNorm: flag(false),
  qkNormEps: finite(1e-6),
  ...modelSettings,
  window: options<WindowSides>({ left: plain, right: plain }, { align: positionsOfCalls }),
  rope: options<RopeRotation>(rotationNames, { qPositions: positionsOfCalls, kPositions: positionsOfCalls }),
  dropout: probability(0),
  outDropout: number(0),
  kvLatentDim: count(0, 0),
  qLatentDim: count(0, 0),
  ropeHeadDim: count(0, 0),
  latentNormEps: number(1e-6),
} satisfies Names<MultiHeadAttentionConfig>;

/** An error message lists at most this many divisors, nearest to the given number. */
const maxDivisors = 16;

function headWidth(embedDim: Count, numHeads: Count): Count {
  if (embedDim % numHeads === 0) return checkCount(embedDim / numHeads, 'headDim');
  const near = divisorsOf(embedDim)
    .sort((a, b) => Math.abs(a - numHeads) - Math.abs(b - numHeads))
    .slice(0, maxDivisors)
    .sort((a, b) => a - b);
  const choices = listed(near);
  throw new MultiheadError('E_OPTION', {
    argument: 'numHeads',
    expected: `a divisor of embedDim = ${embedDim}: ${choices}`,
    got: String(numHeads),
    message: `numHeads = ${numHeads} does not divide embedDim = ${embedDim}; use ${choices}, or give headDim`,
  });
}

/** Checks types and fills in defaults; the core checks most values. Throws `E_OPTION`. */
export function checkConfig(given: MultiHeadAttentionConfig) {
  const config = readOptions(given, configSchema, 'multiHeadAttention');
  const checked = readSettings(config, configSchema);
  const { embedDim, numHeads, ropeHeadDim, outProj } = checked;
  const headDim = checked.headDim ?? headWidth(embedDim, numHeads);
  if (checked.kvLatentDim === 0) {
    for (const name of ['qLatentDim', 'ropeHeadDim', 'latentNormEps'] as const) {
      if (checked[name] !== configSchema[name].otherwise) throw without(name, 'no kvLatentDim');
    }
  }
  // The core reports the error if ropeHeadDim is too large.
  const valueDim = checked.valueDim ?? checkCount(Math.max(headDim - ropeHeadDim, 1), 'valueDim');
  // Defaults are allowed everywhere, so that the configuration of a module makes another one.
  const outDim = outProj ? (checked.outDim ?? embedDim) : checkCount(numHeads * valueDim, 'outDim');
  if ((checked.outDim ?? outDim) !== outDim) throw without('outDim', 'outProj: false');
  if (!checked.qkNorm && checked.qkNormEps !== configSchema.qkNormEps.otherwise) throw without('qkNormEps', 'qkNorm: false');
  return {
    ...checked,
    ...{ headDim, valueDim, outDim },
    numKvHeads: checked.numKvHeads ?? numHeads,
    kdim: checked.kdim ?? embedDim,
    vdim: checked.vdim ?? embedDim,
  };
}

const without = (argument: string, other: string): MultiheadError => optionError(argument, `none with ${other}`, 'one');

/** Converts a checked configuration to the core's record. Throws `E_OPTION`. */
export function moduleRecord(config: CheckedConfig, operands: Operands): wire.MultiHeadAttentionConfig {
  const { embedDim: width, numHeads: heads, window, rope } = config;
  const extents = { batch: 1, heads, queries: 1, keys: 1, width };
  const options = attentionOptions({ window, rope }, operands, extents);
  const { windowLeft, windowRight } = options;
  return { ...config, windowLeft, windowRight, rope: options.rope };
}
