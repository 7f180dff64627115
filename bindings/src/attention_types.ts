// Options and results of attention: the contract of every kind of it.

import type { FloatDType, Tensor, TensorLike } from './tensor_types.js';

/**
 * Where query i stands among the keys: at position p = i + offset.
 *
 * - `'topLeft'`: offset 0, PyTorch's `is_causal`
 * - `'bottomRight'`: offset N_k − N_q, FlashAttention from 2.1 on, and decoding with a cache
 * - `'bottomRightOfLength'`: offset kvLengths[b] − N_q, FlashAttention with a cache of different
 *   lengths; needs `kvLengths`
 * - `{ offset }`: that whole number, which may be negative; ONNX Attention's past length
 */
export type Alignment =
  'topLeft' | 'bottomRight' | 'bottomRightOfLength' | { readonly offset: number };

/**
 * Which keys are hidden from a query by their order. With an {@link Alignment}, query i sees key j
 * only where j ≤ p; with `false`, every key is visible.
 *
 * `true` is refused, because frameworks disagree on what it means when N_q ≠ N_k.
 */
export type Causal = false | Alignment;

/**
 * Query i sees key j only where p − left ≤ j ≤ p + right, so that `left` does not count the token
 * itself, as in FlashAttention.
 */
export interface Window {
  /** A whole number ≥ 0, or −1 for an open side. Default −1. */
  readonly left?: number | undefined;
  /** A whole number ≥ 0, or −1 for an open side. Default −1. */
  readonly right?: number | undefined;
  /**
   * How queries align with keys in a call that is not causal. Default `'topLeft'`. A causal call has
   * an alignment already: stating another one here is an error, and so is one without `left` or
   * `right`.
   */
  readonly align?: Alignment | undefined;
}

/**
 * Root-mean-square normalisation of each query and key vector before anything else, as in Qwen3 and
 * Gemma 3 (QK-norm, arXiv:2302.05442): x / √(mean(x²) + epsilon) · gain.
 */
export interface QkNorm {
  /** (d_k). Default 1 everywhere. */
  readonly qGain?: Float32Array | undefined;
  /** (d_k). Default 1 everywhere. */
  readonly kGain?: Float32Array | undefined;
  /** A finite number ≥ 0. Default 1e−6. */
  readonly epsilon?: number | undefined;
}

/**
 * Rotary position embedding (RoPE, arXiv:2104.09864): pair c of rotaryDim / 2 is turned by the angle
 * position · base^(−2c / rotaryDim), so that (x, y) becomes (x cos − y sin, x sin + y cos).
 */
export interface RopeRotation {
  /**
   * `'interleaved'`: pair c is elements (2c, 2c + 1), as in the paper and GPT-J. `'half'`: pair c is
   * elements (c, c + rotaryDim / 2), as in GPT-NeoX and Llama in Hugging Face.
   */
  readonly style: 'interleaved' | 'half';
  /** A finite number > 0. Default 10000. */
  readonly base?: number | undefined;
  /** Even, at most the width; elements from there on stay as they are. Default the whole width. */
  readonly rotaryDim?: number | undefined;
}

/** {@link RopeRotation} of the queries and keys of a call, each at its position. */
export interface Rope extends RopeRotation {
  /**
   * (N_q), shared by the batch, or (B · N_q) row by row. Default i + offset, with the offset of the
   * call's {@link Alignment}, or 0 without one.
   */
  readonly qPositions?: Int32Array | undefined;
  /** (N_k), shared by the batch, or (B · N_k) row by row. Default 0, 1, 2, … */
  readonly kPositions?: Int32Array | undefined;
}

/**
 * Weights are set to 0 with this probability and the others multiplied by 1 / (1 − p), as in
 * `torch.nn.functional.dropout`.
 *
 * Which ones is a pure function of (seed, b, h, i, j), the same in every build and on every machine:
 * with Philox 4×32-10 (Salmon et al., SC 2011), key = (low, high 32 bits of the seed) and counter =
 * (⌊j/4⌋, i, h, b), weight j is kept iff word j mod 4 ≥ round(p · 2³²), p as a 32-bit float.
 */
export interface Dropout {
  /** 0 ≤ p < 1. */
  readonly probability: number;
  /** A whole number from 0 to 2⁶⁴ − 1: a number up to 2⁵³ − 1, or a bigint. Default 0. */
  readonly seed?: number | bigint | undefined;
}

/**
 * What {@link Multihead.attention} and {@link MultiHeadAttention.forward} share. For batch entry b,
 * query head h, query i and key j, in this order:
 *
 * 1. q and k are normalised (`qkNorm`), then rotated (`rope`), if asked for
 * 2. s = scale · (q · k)
 * 3. s = softcap · tanh(s / softcap)
 * 4. s = s + bias − alibi[h] · |i + N_k − N_q − j|
 * 5. keys are hidden: each of `causal`, `window`, `kvLengths` and `mask` that is given must allow a
 *    key, and a bias of −Infinity hides it too
 * 6. w = softmax over the visible keys, with exp(sink) added to the denominator
 * 7. `dropout` on w
 * 8. o = Σ over j of w · v
 */
export interface MaskOptions {
  /** Factor on Q·Kᵀ, any finite number. Default 1/√d_k, the width of one head, never of the model. */
  readonly scale?: number | undefined;
  /** Default `false`. */
  readonly causal?: Causal | undefined;
  /** Default none. */
  readonly window?: Window | undefined;
  /**
   * Non-zero = may attend, as in `torch.nn.functional.scaled_dot_product_attention` and ONNX.
   * Shape (N_q, N_k) or (B, H_q, N_q, N_k), where any extent may be 1 and is then shared along
   * that axis; key padding is (B, 1, 1, N_k). Three axes are refused: they do not say whether the
   * first is B or H_q.
   */
  readonly mask?: TensorLike<'bool'> | undefined;
  /**
   * Added to the scores; the same shapes as `mask`. −Infinity hides a key, a large finite
   * negative number does not.
   */
  readonly bias?: TensorLike | undefined;
  /** (B). Entry b has keys 0 to kvLengths[b] − 1; the rest of K and V is not read. Default N_k for all. */
  readonly kvLengths?: Int32Array | undefined;
  /**
   * ALiBi (arXiv:2108.12409): `true` for the paper's slopes, see {@link Multihead.alibiSlopes}, or
   * slopes of your own (H_q). The last query and the last key have distance 0, as in FlashAttention,
   * for every causal alignment. Default none.
   */
  readonly alibi?: boolean | Float32Array | undefined;
  /**
   * Bound on the scores, a finite number ≥ 0, as in Gemma 2 and FlashAttention (not ONNX, which
   * masks before it caps). Default 0, which is none.
   */
  readonly softcap?: number | undefined;
  /**
   * (H_q). A logit per head that joins the softmax's denominator and has no value row, as in gpt-oss.
   * A query that sees no key then has its sink as LSE, and output 0. Default none.
   */
  readonly sinks?: Float32Array | undefined;
  /** `{}` for the defaults. Default none. */
  readonly qkNorm?: QkNorm | undefined;
  /** Default none. */
  readonly rope?: Rope | undefined;
  /** For training. Default none. */
  readonly dropout?: Dropout | undefined;
}

/**
 * - `'raw'`: scale · Q·Kᵀ, also of hidden keys; −Infinity for keys beyond `kvLengths`, which are not read
 * - `'capped'`: after the soft cap; likewise
 * - `'masked'`: after bias, ALiBi and masks, −Infinity where hidden
 * - `'weights'`: after the softmax and before dropout, 0 where hidden
 */
export type ScoreStage = 'raw' | 'capped' | 'masked' | 'weights';

/** Scores of chosen heads and rows, written as they are computed. */
export interface Capture {
  readonly stage: ScoreStage;
  /** Query heads, in this order, each at most once. Default all. */
  readonly heads?: readonly number[] | undefined;
  /** [first query, number of queries]. Default all. */
  readonly rows?: readonly [first: number, count: number] | undefined;
}

/**
 * Optional results of {@link Multihead.attention}.
 *
 * - `'lse'` (B, H_q, N_q): the natural logarithm of Σ exp(score) over the visible keys and the sink;
 *   −Infinity without any
 * - `'weights'` (B, H_q, N_q, N_k): the softmax before dropout, 0 where hidden
 * - `'dropoutMask'` (B, H_q, N_q, N_k), booleans: true where dropout kept a weight, hidden positions included;
 *   all true without dropout
 */
export type AttentionReturn = 'lse' | 'weights' | 'dropoutMask';

/** What decides the outputs of {@link Multihead.attention}. */
export interface OutputOptions<
  R extends readonly AttentionReturn[] = readonly AttentionReturn[],
  O extends FloatDType = FloatDType,
  C extends readonly Capture[] = readonly Capture[],
> {
  /** Results besides `out`. Default none. `'weights'` and `'dropoutMask'` have N_q × N_k elements a head. */
  readonly return?: R | undefined;
  /** Written to instead of a new tensor, and returned as `out`. Not one of the inputs. */
  readonly out?: Tensor<O> | undefined;
  /**
   * The dtype of `out`, which need not be that of q, k and v; results are rounded to nearest, ties to
   * even. Default that of the `out` given, else `'f32'`.
   */
  readonly outDtype?: O | undefined;
  /** Any number of captures; they come back in this order. Default none. */
  readonly capture?: C | undefined;
}

/** Options of {@link Multihead.attention}. */
export interface AttentionOptions<
  R extends readonly AttentionReturn[] = readonly AttentionReturn[],
  O extends FloatDType = FloatDType,
  C extends readonly Capture[] = readonly Capture[],
>
  extends MaskOptions, OutputOptions<R, O, C> {}

/** The tensors behind each {@link AttentionReturn}. */
export interface ReturnedTensors {
  /** (B, H_q, N_q) */
  readonly lse: Tensor;
  /** (B, H_q, N_q, N_k) */
  readonly weights: Tensor;
  /** (B, H_q, N_q, N_k) */
  readonly dropoutMask: Tensor<'bool'>;
}

/** The {@link ReturnedTensors} asked for; optional where the type of `return` does not say which. */
export type Returned<R extends readonly AttentionReturn[]> = number extends R['length']
  ? Partial<Pick<ReturnedTensors, R[number]>>
  : Pick<ReturnedTensors, R[number]>;

/** One tensor (B, heads, rows, N_k) for each {@link Capture}; no property without captures. */
export type Captured<C extends readonly Capture[]> = C extends readonly []
  ? unknown
  : number extends C['length']
    ? { readonly captures?: readonly Tensor[] }
    : { readonly captures: { readonly [I in keyof C]: Tensor } };

/** Results of {@link Multihead.attention}. The caller disposes all of them. */
export type AttentionResult<
  R extends readonly AttentionReturn[] = [],
  O extends FloatDType = 'f32',
  C extends readonly Capture[] = [],
> = {
  /** (B, H_q, N_q, d_v). 0 for a query that sees no key. */
  readonly out: Tensor<O>;
} & Returned<R> &
  Captured<C>;

/** Options of {@link Multihead.scores}. */
export interface ScoresOptions extends Omit<MaskOptions, 'dropout'> {
  readonly stage: ScoreStage;
  /** One query head. Not together with `heads`. */
  readonly head?: number | undefined;
  /** Query heads, in this order, each at most once. Default all. */
  readonly heads?: readonly number[] | undefined;
  /** [first query, number of queries]. Default all. */
  readonly rows?: readonly [first: number, count: number] | undefined;
  /** The largest number of rows to give at a time. Default 64. */
  readonly chunk?: number | undefined;
}

/** Some rows of scores: a copy on the JavaScript heap, nothing to dispose. */
export interface ScoreRows {
  /** The query that the first of these rows belongs to. */
  readonly firstRow: number;
  readonly rows: number;
  /** (B, heads, rows, N_k) */
  readonly shape: number[];
  readonly data: Float32Array;
}

/**
 * Options of {@link Multihead.attentionVarlen}, which apply to each sequence by itself, with its own
 * lengths. Options that would need a batch axis are missing.
 */
export interface VarlenOptions<
  R extends readonly 'lse'[] = readonly 'lse'[],
  O extends FloatDType = FloatDType,
>
  extends
    Omit<MaskOptions, 'mask' | 'bias' | 'kvLengths' | 'rope' | 'dropout'>,
    Omit<OutputOptions<R, O>, 'capture'> {
  /** Sequence s is rows cuQ[s] to cuQ[s + 1] − 1 of q. Begins with 0, never decreases, ends with T_q. */
  readonly cuQ: Int32Array;
  /** Sequence s is rows cuK[s] to cuK[s + 1] − 1 of k and v. Begins with 0, never decreases, ends with T_k. */
  readonly cuK: Int32Array;
  /** Positions start at 0 in each sequence, queries at the offset of the call's alignment. */
  readonly rope?: RopeRotation | undefined;
  /** Sequence s has the mask of batch entry 0 with seed + s · 2³² (modulo 2⁶⁴). Default none. */
  readonly dropout?: Dropout | undefined;
}

/** Results of {@link Multihead.attentionVarlen}: `out` (T_q, H_q, d_v), `lse` (H_q, T_q). */
export type VarlenResult<
  R extends readonly 'lse'[] = [],
  O extends FloatDType = 'f32',
> = AttentionResult<R, O>;

/** A result over some of the keys, to be merged with one over others. */
export interface PartialAttention<T extends TensorLike = TensorLike> {
  /** (B, H_q, N_q, d_v) */
  readonly out: T;
  /** (B, H_q, N_q) */
  readonly lse: T;
}

/**
 * Inputs of {@link Multihead.latentAttention}. With c a row of `latent`, head h has
 * key = [wUk[h]·c | kRope], value = wUv[h]·c, query = [qNope | qRope]. A cache has to keep only c and
 * kRope: rank + d_rope numbers a token, for any number of heads.
 */
export interface LatentAttentionInputs {
  /** (B, H, N_q, d_nope) */
  readonly qNope: TensorLike;
  /** (B, H, N_q, d_rope), already rotated */
  readonly qRope: TensorLike;
  /** (B, N_k, rank) */
  readonly latent: TensorLike;
  /** (B, N_k, d_rope), already rotated, shared by all heads */
  readonly kRope: TensorLike;
  /** (H, d_nope, rank) */
  readonly wUk: TensorLike;
  /** (H, d_v, rank) */
  readonly wUv: TensorLike;
}

/** Options of {@link Multihead.latentAttention}. The scale defaults to 1/√(d_nope + d_rope) in both forms. */
export interface LatentAttentionOptions<
  R extends readonly ('lse' | 'weights')[] = readonly ('lse' | 'weights')[],
>
  extends
    Omit<MaskOptions, 'qkNorm' | 'rope'>,
    Omit<OutputOptions<R, 'f32'>, 'outDtype' | 'capture'> {
  /**
   * `'expanded'`: the keys and values of every head are computed first; for prefill.
   * `'absorbed'`: wUk goes into the query and wUv into the output, and attention runs on the latent
   * itself, one key/value head for all; for decoding. The same result up to rounding.
   */
  readonly form: 'expanded' | 'absorbed';
}
