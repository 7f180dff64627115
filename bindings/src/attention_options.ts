// From MaskOptions to the core's options struct. Types are checked here, values in the core.

import { MultiheadError } from './errors.js';
import { noSpan, type Operands } from './operands.js';
import { checkChoice, checkCount, checkNumber, checkOptions, checkWhole } from './options.js';
import type { OptionsArg, RawAlignment, RopeArg, SeedArg } from './raw.js';
import { describe } from './tensor.js';
import type { MaskOptions } from './types.js';

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

/** How many numbers the options of a call are to have. */
export interface CallExtents {
  readonly batch: number;
  readonly heads: number;
  readonly queries: number;
  readonly keys: number;
  /** d_k */
  readonly width: number;
}

export const noSeed: SeedArg = { low: 0, high: 0 };

const noOptions: Readonly<OptionsArg> = {
  mask: undefined,
  bias: undefined,
  scale: undefined,
  causal: 0,
  offset: 0,
  windowLeft: -1,
  windowRight: -1,
  windowAlignment: 0,
  windowOffset: 0,
  kvLengths: noSpan,
  alibiSlopes: noSpan,
  softcap: 0,
  sinks: noSpan,
  normEnabled: false,
  qGain: noSpan,
  kGain: noSpan,
  epsilon: 1e-6,
  rope: { style: 0, base: 10_000, rotaryDim: 0 },
  qPositions: noSpan,
  kPositions: noSpan,
  dropout: 0,
  seed: noSeed,
};

/** Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. The names have been checked. */
export function optionsArg(
  options: MaskOptions,
  operands: Operands,
  extents: CallExtents,
): OptionsArg {
  const arg: OptionsArg = { ...noOptions };
  arg.mask = operands.optional(options.mask, ['bool'], 'mask');
  arg.bias = operands.optional(options.bias, ['f32'], 'bias');
  if (options.scale !== undefined) arg.scale = checkNumber(options.scale, 'scale');
  setCausal(arg, options.causal);
  setWindow(arg, options.window);
  const { batch, heads } = extents;
  arg.kvLengths = operands.optionalSpan(options.kvLengths, 'i32', 'kvLengths', batch);
  setAlibi(arg, options.alibi, operands, heads);
  if (options.softcap !== undefined) arg.softcap = checkNumber(options.softcap, 'softcap');
  arg.sinks = operands.optionalSpan(options.sinks, 'f32', 'sinks', heads);
  setQkNorm(arg, options.qkNorm, operands, extents.width);
  setRope(arg, options.rope, operands, extents);
  setDropout(arg, options.dropout);
  return arg;
}

interface Aligned {
  alignment: RawAlignment;
  offset: number;
}

const named: Readonly<Record<string, Aligned>> = {
  topLeft: { alignment: 1, offset: 0 },
  bottomRight: { alignment: 2, offset: 0 },
  bottomRightOfLength: { alignment: 3, offset: 0 },
};
const alignments = "'topLeft', 'bottomRight', 'bottomRightOfLength' or { offset: a whole number }";

/** Undefined for what is no alignment; throws `E_OPTION` for an offset that is no whole number. */
function alignmentOf(value: unknown, argument: string): Aligned | undefined {
  if (typeof value === 'string' && Object.hasOwn(named, value)) return named[value];
  if (typeof value !== 'object' || value === null || !('offset' in value)) return undefined;
  checkOptions(value, ['offset'], argument);
  return { alignment: 4, offset: checkWhole(value.offset, `${argument}.offset`) };
}

function setCausal(arg: OptionsArg, value: unknown): void {
  if (value === undefined || value === false) return;
  const expected = `false, ${alignments}`;
  if (value === true) {
    throw new MultiheadError('E_OPTION', {
      argument: 'causal',
      expected,
      got: 'true',
      message:
        'causal: true does not say how queries and keys align when there are not as many of each; ' +
        "use 'topLeft' (query i sees keys 0 to i, as PyTorch's is_causal) or 'bottomRight' " +
        '(the last query sees every key, as FlashAttention and caches have it)',
    });
  }
  const aligned = alignmentOf(value, 'causal');
  if (aligned === undefined) {
    throw new MultiheadError('E_OPTION', { argument: 'causal', expected, got: describe(value) });
  }
  arg.causal = aligned.alignment;
  arg.offset = aligned.offset;
}

function setWindow(arg: OptionsArg, window: MaskOptions['window']): void {
  if (window === undefined) return;
  checkOptions(window, ['left', 'right', 'align'], 'window');
  const { left, right, align } = window;
  if (left !== undefined) arg.windowLeft = checkWhole(left, 'window.left');
  if (right !== undefined) arg.windowRight = checkWhole(right, 'window.right');
  if (align === undefined) return;
  const aligned = alignmentOf(align, 'window.align');
  if (aligned === undefined) {
    throw new MultiheadError('E_OPTION', {
      argument: 'window.align',
      expected: alignments,
      got: describe(align),
    });
  }
  arg.windowAlignment = aligned.alignment;
  arg.windowOffset = aligned.offset;
}

function setAlibi(arg: OptionsArg, alibi: unknown, operands: Operands, heads: number): void {
  if (alibi === undefined || alibi === false) return;
  if (alibi === true) arg.alibiSlopes = operands.alibiSlopes(heads);
  else if (ArrayBuffer.isView(alibi)) {
    arg.alibiSlopes = operands.optionalSpan(alibi, 'f32', 'alibi', heads);
  } else {
    throw new MultiheadError('E_OPTION', {
      argument: 'alibi',
      expected: 'true, false or a Float32Array of slopes (H_q)',
      got: describe(alibi),
    });
  }
}

function setQkNorm(
  arg: OptionsArg,
  norm: MaskOptions['qkNorm'],
  operands: Operands,
  width: number,
): void {
  if (norm === undefined) return;
  checkOptions(norm, ['qGain', 'kGain', 'epsilon'], 'qkNorm');
  arg.normEnabled = true;
  arg.qGain = operands.optionalSpan(norm.qGain, 'f32', 'qkNorm.qGain', width);
  arg.kGain = operands.optionalSpan(norm.kGain, 'f32', 'qkNorm.kGain', width);
  if (norm.epsilon !== undefined) arg.epsilon = checkNumber(norm.epsilon, 'qkNorm.epsilon');
}

/** The names of a rotation without positions. */
export const rotationNames = ['style', 'base', 'rotaryDim'] as const;

/** The names have been checked; throws `E_OPTION`. */
export function ropeArg(rope: MaskOptions['rope'] & object): RopeArg {
  const style = checkChoice(rope.style, ['interleaved', 'half'], 'rope.style');
  return {
    style: style === 'interleaved' ? 1 : 2,
    base: rope.base === undefined ? noOptions.rope.base : checkNumber(rope.base, 'rope.base'),
    rotaryDim: rope.rotaryDim === undefined ? 0 : checkCount(rope.rotaryDim, 'rope.rotaryDim', 2),
  };
}

function setRope(
  arg: OptionsArg,
  rope: MaskOptions['rope'],
  operands: Operands,
  { queries, keys }: CallExtents,
): void {
  if (rope === undefined) return;
  checkOptions(rope, [...rotationNames, 'qPositions', 'kPositions'], 'rope');
  arg.rope = ropeArg(rope);
  arg.qPositions = operands.optionalSpan(rope.qPositions, 'i32', 'rope.qPositions', queries);
  arg.kPositions = operands.optionalSpan(rope.kPositions, 'i32', 'rope.kPositions', keys);
}

function setDropout(arg: OptionsArg, dropout: MaskOptions['dropout']): void {
  if (dropout === undefined) return;
  checkOptions(dropout, ['probability', 'seed'], 'dropout');
  const { probability, seed = 0 } = dropout;
  arg.dropout = checkNumber(probability, 'dropout.probability', '0 ≤ p < 1');
  arg.seed = seedWords(seed, 'dropout.seed');
}

/** The low and the high 32 bits; throws `E_OPTION`. */
export function seedWords(seed: unknown, argument: string): SeedArg {
  const whole = typeof seed === 'bigint' || Number.isSafeInteger(seed);
  const words = whole ? BigInt(seed as bigint | number) : -1n;
  if (words < 0n || words >= 2n ** 64n) {
    throw new MultiheadError('E_OPTION', {
      argument,
      expected: 'a whole number from 0 to 2⁶⁴ − 1, beyond 2⁵³ − 1 a bigint',
      got: describe(seed),
    });
  }
  return { low: Number(words & 0xffff_ffffn), high: Number(words >> 32n) };
}
