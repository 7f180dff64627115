// The options of attention. The schema states each option once: the names in its value, how it is read into the record of
// the core, and the axis of its values; noOptions has the defaults. All lists of names come from it. Types are checked here, values in
// the core.

import { type Alignment, alignments, precisions, ropeStyles } from '../generated/tables.js';
import type * as wire from '../generated/wire.js';
import { MultiheadError, optionError } from '../runtime/errors.js';
import { noSpan, type Operands } from '../runtime/operands.js';
import { checkChoice, checkCount, checkNumber, checkOptions, checkWhole, type Entry, type Names, plain } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { Dropout, DType, MaskOptions, ModelOptions, QkNorm, Rope, RopeRotation, Window } from '../types/index.js';
import type { Count, Int64, Operand, Span, Uint32, Whole64 } from '../types/wire.js';

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

/** An array with values for each index of an axis of the call. A pool that divides the axis slices the array. */
export interface ArrayEntry extends Entry {
  readonly axis: 'batch' | 'heads' | 'queries' | 'keys';
  readonly elements: 'f32' | 'i32';
}

type Fields = wire.AttentionOptions;

/** An option with values of type V. */
interface Option<V> extends Entry {
  /** Sets its fields of the record. Throws `E_OPTION`, `E_SHAPE`, `E_DISPOSED`, `E_MEMORY`. */
  read(record: Fields, value: V, operands: Operands, extents: CallExtents): void;
}
type Options<T> = { readonly [N in keyof T]-?: Option<Exclude<T[N], undefined>> };

type NumberName = 'scale' | keyof ModelOptions;

const number = (name: NumberName) => ({
  read(record: Fields, value: number) {
    record[name] = checkNumber(value, name);
  },
});

const tensor = <const N extends 'mask' | 'bias', D extends DType>(name: N, dtype: D) => ({
  read(record: Record<N, Operand<D> | undefined>, value: unknown, operands: Operands) {
    record[name] = operands.optional(value, [dtype], name);
  },
});

const array = <const N extends 'kvLengths' | 'sinks', E extends 'f32' | 'i32'>(name: N, elements: E, axis: 'batch' | 'heads') => ({
  ...{ axis, elements },
  read(record: Record<N, Span<E>>, value: unknown, operands: Operands, extents: CallExtents) {
    record[name] = operands.optionalSpan(value, elements, name, extents[axis]);
  },
});

/** The names in {@link RopeRotation}. */
export const rotationNames = { style: plain, base: plain, rotaryDim: plain } satisfies Names<RopeRotation>;

/** Numbers that may also be in the configuration of a module. */
export const modelSchema = {
  softcap: /* @__PURE__ */ number('softcap'),
} satisfies Options<ModelOptions>;

const alignmentNames = { offset: plain };

/** The options of attention, in the order in which messages list them. */
export const attentionSchema = {
  scale: /* @__PURE__ */ number('scale'),
  causal: {
    inner: alignmentNames,
    read: setCausal,
  },
  window: {
    inner: { left: plain, right: plain, align: { inner: alignmentNames } } satisfies Names<Window>,
    read: setWindow,
  },
  alibi: { axis: 'heads', elements: 'f32', read: setAlibi },
  ...modelSchema,
  sinks: /* @__PURE__ */ array('sinks', 'f32', 'heads'),
  dropout: {
    inner: { probability: plain, seed: plain } satisfies Names<Dropout>,
    read: setDropout,
  },
  mask: /* @__PURE__ */ tensor('mask', 'bool'),
  bias: /* @__PURE__ */ tensor('bias', 'f32'),
  kvLengths: /* @__PURE__ */ array('kvLengths', 'i32', 'batch'),
  qkNorm: {
    inner: { qGain: plain, kGain: plain, eps: plain } satisfies Names<QkNorm>,
    read: setQkNorm,
  },
  rope: {
    inner: {
      ...rotationNames,
      qPositions: { axis: 'queries', elements: 'i32' } as ArrayEntry,
      kPositions: { axis: 'keys', elements: 'i32' } as ArrayEntry,
    } satisfies Names<Rope>,
    read: setRope,
  },
} as const satisfies Options<MaskOptions> & Readonly<Record<string, Partial<ArrayEntry>>>;

/** The record of no options: the defaults. A literal, because every call copies it and literals are copied fastest. */
export const noOptions: Readonly<Fields> = {
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
export function attentionOptions(options: MaskOptions, operands: Operands, extents: CallExtents): wire.AttentionOptions {
  const record: wire.AttentionOptions = { ...noOptions };
  const causal = alignedCausal(options, extents.queries === extents.keys);
  // Most calls give few options, so this reads those that are given. The object may have other options too.
  for (const name in options) {
    if (!Object.hasOwn(attentionSchema, name)) continue;
    const value = name === 'causal' ? causal : options[name as keyof MaskOptions];
    if (value !== undefined) attentionSchema[name as keyof MaskOptions].read(record, value as never, operands, extents);
  }
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
const alignmentWords = "'topLeft', 'bottomRight', 'bottomRightOfLength' or { offset: a whole number }";

/** Reads an alignment; undefined for any other value. Throws `E_OPTION` for an offset that is not a whole number. */
function alignmentOf(value: unknown, argument: string): Aligned | undefined {
  if (typeof value === 'string' && Object.hasOwn(named, value)) return named[value];
  if (typeof value !== 'object' || value === null || !('offset' in value)) return undefined;
  checkOptions(value, alignmentNames, argument);
  return { alignment: alignments.offset, offset: checkWhole(value.offset, `${argument}.offset`) };
}

const causalValues = `true, false, ${alignmentWords}`;

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
  if (value === false) return;
  const aligned = alignmentOf(value, 'causal');
  if (aligned === undefined) throw optionError('causal', causalValues, describe(value));
  record.causalAlignment = aligned.alignment;
  record.causalOffset = aligned.offset;
}

function setWindow(record: wire.AttentionOptions, window: Window): void {
  checkOptions(window, attentionSchema.window.inner, 'window');
  const { left, right, align } = window;
  if (left !== undefined) record.windowLeft = checkWhole(left, 'window.left');
  if (right !== undefined) record.windowRight = checkWhole(right, 'window.right');
  if (align === undefined) return;
  const aligned = alignmentOf(align, 'window.align');
  if (aligned === undefined) throw optionError('window.align', alignmentWords, describe(align));
  record.windowAlignment = aligned.alignment;
  record.windowOffset = aligned.offset;
}

function setAlibi(record: wire.AttentionOptions, alibi: unknown, operands: Operands, { heads }: CallExtents): void {
  if (alibi === false) return;
  if (alibi === true) record.alibiSlopes = operands.alibiSlopes(heads);
  else if (ArrayBuffer.isView(alibi)) {
    record.alibiSlopes = operands.optionalSpan(alibi, 'f32', 'alibi', heads);
  } else {
    throw optionError('alibi', 'true, false or a Float32Array of slopes (H_q)', describe(alibi));
  }
}

function setQkNorm(record: wire.AttentionOptions, norm: QkNorm, operands: Operands, { width }: CallExtents): void {
  checkOptions(norm, attentionSchema.qkNorm.inner, 'qkNorm');
  record.qkNorm = true;
  record.qGain = operands.optionalSpan(norm.qGain, 'f32', 'qkNorm.qGain', width);
  record.kGain = operands.optionalSpan(norm.kGain, 'f32', 'qkNorm.kGain', width);
  if (norm.eps !== undefined) record.qkNormEps = checkNumber(norm.eps, 'qkNorm.eps');
}

/** Converts a `rope` whose names have been checked. Throws `E_OPTION`. */
export function ropeRecord(rope: RopeRotation): wire.Rope {
  const style = checkChoice(rope.style, ['interleaved', 'half'], 'rope.style');
  return {
    style: ropeStyles[style],
    base: rope.base === undefined ? noOptions.rope.base : checkNumber(rope.base, 'rope.base'),
    rotaryDim: rope.rotaryDim === undefined ? 0 : checkCount(rope.rotaryDim, 'rope.rotaryDim', 2),
  };
}

function setRope(record: wire.AttentionOptions, rope: Rope, operands: Operands, { queries, keys }: CallExtents): void {
  checkOptions(rope, attentionSchema.rope.inner, 'rope');
  record.rope = ropeRecord(rope);
  record.qPositions = operands.optionalSpan(rope.qPositions, 'i32', 'rope.qPositions', queries);
  record.kPositions = operands.optionalSpan(rope.kPositions, 'i32', 'rope.kPositions', keys);
}

function setDropout(record: wire.AttentionOptions, dropout: Dropout): void {
  checkOptions(dropout, attentionSchema.dropout.inner, 'dropout');
  const { probability, seed = 0 } = dropout;
  record.dropoutProbability = checkNumber(probability, 'dropout.probability', '0 ≤ p < 1');
  record.dropoutSeed = seedWords(seed, 'dropout.seed');
}

/** Splits a seed into two 32-bit words. Throws `E_OPTION`. */
export function seedWords(seed: unknown, argument: string): Whole64 {
  const whole = typeof seed === 'bigint' || Number.isSafeInteger(seed);
  const words = whole ? BigInt(seed as bigint | number) : -1n;
  if (words < 0n || words >= 2n ** 64n) {
    throw optionError(argument, 'a whole number from 0 to 2⁶⁴ − 1, beyond 2⁵³ − 1 a bigint', describe(seed));
  }
  return { low: Number(words & 0xffff_ffffn) as Uint32, high: Number(words >> 32n) as Uint32 };
}
