// Converts MaskOptions to the record that the core reads. Types are checked here, values in the core.

import { type Alignment, alignments, precisions, ropeStyles } from '../generated/tables.js';
import type * as wire from '../generated/wire.js';
import { MultiheadError } from '../runtime/errors.js';
import { noSpan, type Operands } from '../runtime/operands.js';
import { checkChoice, checkCount, checkNumber, checkOptions, checkWhole, type Covers } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { MaskOptions } from '../types/index.js';
import type { Count, Int64, Uint32, Whole64 } from '../types/wire.js';

/** Options that every kind of attention has. */
export const sharedNames = [
  'scale',
  'causal',
  'window',
  'alibi',
  'softcap',
  'sinks',
  'dropout',
] as const;

/** The names in {@link MaskOptions}. */
export const maskNames = [
  ...sharedNames,
  'mask',
  'bias',
  'kvLengths',
  'qkNorm',
  'rope',
] as const satisfies readonly (keyof MaskOptions)[];
true satisfies Covers<MaskOptions, typeof maskNames>;

/** Extents of a call, which determine the lengths of its options. */
export interface CallExtents {
  readonly batch: number;
  readonly heads: Count;
  readonly queries: number;
  readonly keys: number;
  /** d_k */
  readonly width: Count;
}

export const noSeed: Whole64 = { low: 0, high: 0 };

export const noOptions: Readonly<wire.AttentionOptions> = {
  mask: undefined,
  bias: undefined,
  scale: undefined,
  causalAlignment: alignments.none,
  causalOffset: 0,
  windowLeft: -1,
  windowRight: -1,
  windowAlignment: alignments.none,
  windowOffset: 0,
  kvLengths: noSpan,
  alibiSlopes: noSpan,
  softcap: 0,
  sinks: noSpan,
  qkNorm: false,
  qGain: noSpan,
  kGain: noSpan,
  qkNormEps: 1e-6,
  rope: { style: ropeStyles.none, base: 10_000, rotaryDim: 0 },
  qPositions: noSpan,
  kPositions: noSpan,
  dropoutProbability: 0,
  dropoutSeed: noSeed,
  // WebAssembly has no instructions for products of bf16.
  precision: precisions.f32,
};

/** Converts options whose names have been checked. Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
export function attentionOptions(
  options: MaskOptions,
  operands: Operands,
  extents: CallExtents,
): wire.AttentionOptions {
  const record: wire.AttentionOptions = { ...noOptions };
  record.mask = operands.optional(options.mask, ['bool'], 'mask');
  record.bias = operands.optional(options.bias, ['f32'], 'bias');
  if (options.scale !== undefined) record.scale = checkNumber(options.scale, 'scale');
  setCausal(record, alignedCausal(options, extents.queries === extents.keys));
  setWindow(record, options.window);
  const { batch, heads } = extents;
  record.kvLengths = operands.optionalSpan(options.kvLengths, 'i32', 'kvLengths', batch);
  setAlibi(record, options.alibi, operands, heads);
  if (options.softcap !== undefined) record.softcap = checkNumber(options.softcap, 'softcap');
  record.sinks = operands.optionalSpan(options.sinks, 'f32', 'sinks', heads);
  setQkNorm(record, options.qkNorm, operands, extents.width);
  setRope(record, options.rope, operands, extents);
  setDropout(record, options.dropout);
  return record;
}

interface Aligned {
  alignment: Alignment;
  offset: Int64;
}

const named: Readonly<Record<string, Aligned>> = {
  topLeft: { alignment: alignments.topLeft, offset: 0 },
  bottomRight: { alignment: alignments.bottomRight, offset: 0 },
  bottomRightOfLength: { alignment: alignments.bottomRightOfLength, offset: 0 },
};
const alignmentNames = "'topLeft', 'bottomRight', 'bottomRightOfLength' or { offset: a whole number }";

/** Reads an alignment; undefined for any other value. Throws `E_OPTION` for an offset that is not a whole number. */
function alignmentOf(value: unknown, argument: string): Aligned | undefined {
  if (typeof value === 'string' && Object.hasOwn(named, value)) return named[value];
  if (typeof value !== 'object' || value === null || !('offset' in value)) return undefined;
  checkOptions(value, ['offset'], argument);
  return { alignment: alignments.offset, offset: checkWhole(value.offset, `${argument}.offset`) };
}

const causalValues = `true, false, ${alignmentNames}`;

/**
 * Replaces `causal: true` by an alignment. With as many queries as keys `'topLeft'` and `'bottomRight'` are the same, so
 * the one of the window is used, or else `usual`. Other values are returned unchanged. Throws `E_OPTION`.
 *
 * @param sameLength true if there are as many queries as keys, in each sequence or batch entry
 */
export function alignedCausal(
  { causal, window }: Pick<MaskOptions, 'causal' | 'window'>,
  sameLength: boolean,
  usual: 'topLeft' | 'bottomRight' = 'topLeft',
): MaskOptions['causal'] {
  if (causal !== true) return causal;
  if (sameLength) return window?.align === 'bottomRight' ? 'bottomRight' : usual;
  throw new MultiheadError('E_OPTION', {
    argument: 'causal',
    expected: causalValues,
    got: 'true',
    message:
      'causal: true does not say how queries and keys align when there are not as many of each; ' +
      "use 'topLeft' (query i sees keys 0 to i, as PyTorch's is_causal) or 'bottomRight' " +
      '(the last query sees every key, as FlashAttention and caches have it)',
  });
}

function setCausal(record: wire.AttentionOptions, value: unknown): void {
  if (value === undefined || value === false) return;
  const aligned = alignmentOf(value, 'causal');
  if (aligned === undefined) {
    throw new MultiheadError('E_OPTION', { argument: 'causal', expected: causalValues, got: describe(value) });
  }
  record.causalAlignment = aligned.alignment;
  record.causalOffset = aligned.offset;
}

function setWindow(record: wire.AttentionOptions, window: MaskOptions['window']): void {
  if (window === undefined) return;
  checkOptions(window, ['left', 'right', 'align'], 'window');
  const { left, right, align } = window;
  if (left !== undefined) record.windowLeft = checkWhole(left, 'window.left');
  if (right !== undefined) record.windowRight = checkWhole(right, 'window.right');
  if (align === undefined) return;
  const aligned = alignmentOf(align, 'window.align');
  if (aligned === undefined) {
    throw new MultiheadError('E_OPTION', {
      argument: 'window.align',
      expected: alignmentNames,
      got: describe(align),
    });
  }
  record.windowAlignment = aligned.alignment;
  record.windowOffset = aligned.offset;
}

function setAlibi(record: wire.AttentionOptions, alibi: unknown, operands: Operands, heads: Count): void {
  if (alibi === undefined || alibi === false) return;
  if (alibi === true) record.alibiSlopes = operands.alibiSlopes(heads);
  else if (ArrayBuffer.isView(alibi)) {
    record.alibiSlopes = operands.optionalSpan(alibi, 'f32', 'alibi', heads);
  } else {
    throw new MultiheadError('E_OPTION', {
      argument: 'alibi',
      expected: 'true, false or a Float32Array of slopes (H_q)',
      got: describe(alibi),
    });
  }
}

function setQkNorm(
  record: wire.AttentionOptions,
  norm: MaskOptions['qkNorm'],
  operands: Operands,
  width: number,
): void {
  if (norm === undefined) return;
  checkOptions(norm, ['qGain', 'kGain', 'eps'], 'qkNorm');
  record.qkNorm = true;
  record.qGain = operands.optionalSpan(norm.qGain, 'f32', 'qkNorm.qGain', width);
  record.kGain = operands.optionalSpan(norm.kGain, 'f32', 'qkNorm.kGain', width);
  if (norm.eps !== undefined) record.qkNormEps = checkNumber(norm.eps, 'qkNorm.eps');
}

/** Names in {@link RopeRotation}, which excludes positions. */
export const rotationNames = ['style', 'base', 'rotaryDim'] as const;

/** Converts a `rope` whose names have been checked. Throws `E_OPTION`. */
export function ropeRecord(rope: MaskOptions['rope'] & object): wire.Rope {
  const style = checkChoice(rope.style, ['interleaved', 'half'], 'rope.style');
  return {
    style: ropeStyles[style],
    base: rope.base === undefined ? noOptions.rope.base : checkNumber(rope.base, 'rope.base'),
    rotaryDim: rope.rotaryDim === undefined ? 0 : checkCount(rope.rotaryDim, 'rope.rotaryDim', 2),
  };
}

function setRope(
  record: wire.AttentionOptions,
  rope: MaskOptions['rope'],
  operands: Operands,
  { queries, keys }: CallExtents,
): void {
  if (rope === undefined) return;
  checkOptions(rope, [...rotationNames, 'qPositions', 'kPositions'], 'rope');
  record.rope = ropeRecord(rope);
  record.qPositions = operands.optionalSpan(rope.qPositions, 'i32', 'rope.qPositions', queries);
  record.kPositions = operands.optionalSpan(rope.kPositions, 'i32', 'rope.kPositions', keys);
}

function setDropout(record: wire.AttentionOptions, dropout: MaskOptions['dropout']): void {
  if (dropout === undefined) return;
  checkOptions(dropout, ['probability', 'seed'], 'dropout');
  const { probability, seed = 0 } = dropout;
  record.dropoutProbability = checkNumber(probability, 'dropout.probability', '0 ≤ p < 1');
  record.dropoutSeed = seedWords(seed, 'dropout.seed');
}

/** Splits a seed into two 32-bit words. Throws `E_OPTION`. */
export function seedWords(seed: unknown, argument: string): Whole64 {
  const whole = typeof seed === 'bigint' || Number.isSafeInteger(seed);
  const words = whole ? BigInt(seed as bigint | number) : -1n;
  if (words < 0n || words >= 2n ** 64n) {
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: 'a whole number from 0 to 2⁶⁴ − 1, beyond 2⁵³ − 1 a bigint',
      got: describe(seed),
    });
  }
  return { low: Number(words & 0xffff_ffffn) as Uint32, high: Number(words >> 32n) as Uint32 };
}
