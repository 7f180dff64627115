// Options and results of attention, packed sequences and latent attention included.

import type { DisposableResult, FloatDType, Tensor, TensorLike } from './tensor.js';

/**
 * The position of query i among the keys: p = i + offset.
 *
 * - `'topLeft'`: offset 0, PyTorch's `is_causal`
 * - `'bottomRight'`: offset N_k − N_q, as in FlashAttention ≥ 2.1 and in decoding with a cache
 * - `'bottomRightOfLength'`: offset kvLengths[b] − N_q, as in FlashAttention with a cache whose entries
 *   have different lengths; needs `kvLengths`
 * - `{ offset }`: this whole number, which may be negative; the past length of ONNX Attention
 */
export type Alignment =
  | 'topLeft'
  | 'bottomRight'
  | 'bottomRightOfLength'
  | {
      /** p − i, a whole number. */
      readonly offset: number;
    };

/**
 * Causal masking. With an {@link Alignment}, query i sees key j only if j ≤ p, the query's position; with `false`,
 * every key is visible. `true` is `'topLeft'`, which is also `'bottomRight'`, where N_q = N_k. Where N_q ≠ N_k it is an
 * error, because frameworks disagree on its meaning. In packed sequences, each sequence must have as many queries as
 * keys.
 */
export type Causal = boolean | Alignment;

/**
 * Sliding window: query i sees key j only if p − left ≤ j ≤ p + right. As in FlashAttention, `left` and
 * `right` do not count the token itself.
 */
export interface Window {
  /** A whole number ≥ 0, or −1 for an open side. Default −1. */
  readonly left?: number | undefined;
  /** A whole number ≥ 0, or −1 for an open side. Default −1. */
  readonly right?: number | undefined;
  /**
   * Alignment of queries with keys in a call that is not causal. Default `'topLeft'`. A causal call states its
   * alignment in `causal`. It is an error to state a different one here, or to state one without `left` or `right`.
   */
  readonly align?: Alignment | undefined;
}

/**
 * Root-mean-square normalization of each query and key vector, before RoPE, as in Qwen3 and Gemma 3 (QK-norm,
 * arXiv:2302.05442): x / √(mean(x²) + eps) · gain.
 */
export interface QkNorm {
  /** (d_k). Default 1 everywhere. */
  readonly qGain?: Float32Array | undefined;
  /** (d_k). Default 1 everywhere. */
  readonly kGain?: Float32Array | undefined;
  /** A finite number ≥ 0. Default 1e−6. */
  readonly eps?: number | undefined;
}

/**
 * Rotary position embedding (RoPE, arXiv:2104.09864). Pair c of the rotaryDim / 2 pairs of elements is rotated by the
 * angle position · base^(−2c / rotaryDim): (x, y) becomes (x cos − y sin, x sin + y cos).
 */
export interface RopeRotation {
  /**
   * `'interleaved'`: pair c is elements (2c, 2c + 1), as in the paper and GPT-J. `'half'`: pair c is
   * elements (c, c + rotaryDim / 2), as in GPT-NeoX and Llama in Hugging Face.
   */
  readonly style: 'interleaved' | 'half';
  /** A finite number > 0. Default 10000. */
  readonly base?: number | undefined;
  /**
   * Number of elements that are rotated: even, at most the head dim. The others stay unchanged. Default
   * the head dim.
   */
  readonly rotaryDim?: number | undefined;
}

/** {@link RopeRotation} of the queries and keys of a call, and the positions of both. */
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
 * Sets each weight to 0 with probability p, and multiplies the others by 1 / (1 − p), as in
 * `torch.nn.functional.dropout`. The mask is a pure function of (seed, b, h, i, j), the same in every build and on
 * every machine: with Philox 4×32-10 (Salmon et al., SC 2011), key = (low, high 32 bits of the seed) and counter =
 * (⌊j/4⌋, i, h, b), weight j is kept iff word j mod 4 ≥ round(p · 2³²), with p as a 32-bit float.
 */
export interface Dropout {
  /** p, with 0 ≤ p < 1. */
  readonly probability: number;
  /** A whole number from 0 to 2⁶⁴ − 1; as a bigint from 2⁵³ on. Default 0. */
  readonly seed?: number | bigint | undefined;
}

/** Options that a call takes, and that the configuration of a module takes for all of its calls. */
export interface ModelOptions {
  /**
   * Bound on the scores: s becomes softcap · tanh(s / softcap), as in Gemma 2 and FlashAttention. ONNX
   * differs: it masks before it caps. A finite number ≥ 0. Default 0: no bound.
   */
  readonly softcap?: number | undefined;
}

/**
 * The options that {@link Multihead.attention} and {@link MultiHeadAttention.forward} share. For batch
 * entry b, query head h, query i and key j they apply in this order:
 *
 * 1. q and k are normalized (`qkNorm`), then rotated (`rope`), if these are given
 * 2. s = scale · (q · k)
 * 3. s = softcap · tanh(s / softcap)
 * 4. s = s + bias − alibi[h] · |i + N_k − N_q − j|
 * 5. masks: a key is visible only if each of `causal`, `window`, `kvLengths` and `mask` that is given
 *    allows it; a bias of −Infinity also hides it
 * 6. w = softmax over the visible keys, with exp(sink) added to the denominator
 * 7. `dropout` on w
 * 8. o = Σ over j of w · v
 */
export interface MaskOptions extends ModelOptions {
  /** Factor on Q·Kᵀ, any finite number. Default 1/√d_k, where d_k is the head dim, not embedDim. */
  readonly scale?: number | undefined;
  /** Default `false`. */
  readonly causal?: Causal | undefined;
  /** Default none. */
  readonly window?: Window | undefined;
  /**
   * Non-zero = may attend, as in `torch.nn.functional.scaled_dot_product_attention` and ONNX.
   * Shape (N_q, N_k) or (B, H_q, N_q, N_k), where any extent may be 1 and is then shared along
   * that axis; key padding is (B, 1, 1, N_k). Three axes are refused, because the first could be B or
   * H_q. Default none.
   */
  readonly mask?: TensorLike<'bool'> | undefined;
  /**
   * Added to the scores; the same shapes as `mask`. −Infinity hides a key; a large negative finite
   * number does not. Default none.
   */
  readonly bias?: TensorLike | undefined;
  /** (B). Entry b has keys 0 to kvLengths[b] − 1; the rest of K and V is not read. Default N_k for all. */
  readonly kvLengths?: Int32Array | undefined;
  /**
   * ALiBi (arXiv:2108.12409): `true` for the paper's slopes (`mh.alibiSlopes()`), or slopes
   * of your own (H_q). Distances are counted so that the last query and the last key have distance 0,
   * as in FlashAttention, whatever the causal alignment. Default none.
   */
  readonly alibi?: boolean | Float32Array | undefined;
  /**
   * (H_q). Attention sinks, as in gpt-oss: one logit per head, whose exponential is added to the
   * softmax's denominator; it has no value row. A query that sees no key then has LSE = its head's
   * sink, and output 0. Default none.
   */
  readonly sinks?: Float32Array | undefined;
  /** QK-norm; `{}` takes its defaults. Default none. */
  readonly qkNorm?: QkNorm | undefined;
  /** Rotary position embedding. Default none. */
  readonly rope?: Rope | undefined;
  /** Dropout on the weights, for training. Default none. */
  readonly dropout?: Dropout | undefined;
}

/**
 * A stage of the scores:
 *
 * - `'raw'`: scale · Q·Kᵀ, of hidden keys too; −Infinity for keys beyond `kvLengths`, which are not read
 * - `'capped'`: the same after the soft cap
 * - `'masked'`: after bias, ALiBi and masks; −Infinity for hidden keys
 * - `'weights'`: after the softmax and before dropout; 0 for hidden keys
 */
export type ScoreStage = 'raw' | 'capped' | 'masked' | 'weights';

/** Scores of a call that are copied out, of chosen heads and rows. */
export interface Capture {
  /** Which scores. */
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
 *   −Infinity if there is neither
 * - `'weights'` (B, H_q, N_q, N_k): the softmax before dropout; 0 for hidden keys
 * - `'dropoutMask'` (B, H_q, N_q, N_k), booleans: true where dropout keeps a weight, also at hidden
 *   positions; all true without dropout
 */
export type AttentionReturn = 'lse' | 'weights' | 'dropoutMask';

/** Options that choose the outputs of {@link Multihead.attention}. */
export interface OutputOptions<
  R extends readonly AttentionReturn[] = readonly AttentionReturn[],
  O extends FloatDType = FloatDType,
  C extends readonly Capture[] = readonly Capture[],
> {
  /**
   * Results besides `out`. Default none. `'weights'` and `'dropoutMask'` have N_q × N_k elements per
   * head.
   */
  readonly return?: R | undefined;
  /** Tensor to write to, returned as `out`. It must not be one of the inputs. Default a new one. */
  readonly out?: Tensor<O> | undefined;
  /**
   * Dtype of `out`, independent of the dtypes of q, k and v. Results are rounded to nearest, ties to even. Default the
   * dtype of the `out` tensor if one is given, else `'f32'`.
   */
  readonly outDtype?: O | undefined;
  /** Any number of captures; `captures` has their results in this order. Default none. */
  readonly capture?: C | undefined;
}

/** Options of {@link Multihead.attention}. */
export interface AttentionOptions<
  R extends readonly AttentionReturn[] = readonly AttentionReturn[],
  O extends FloatDType = FloatDType,
  C extends readonly Capture[] = readonly Capture[],
>
  extends MaskOptions, OutputOptions<R, O, C> {}

/** The tensor of each {@link AttentionReturn}. */
export interface ReturnedTensors {
  /** (B, H_q, N_q) */
  readonly lse: Tensor;
  /** (B, H_q, N_q, N_k) */
  readonly weights: Tensor;
  /** (B, H_q, N_q, N_k) */
  readonly dropoutMask: Tensor<'bool'>;
}

/** The requested {@link ReturnedTensors}; optional if the type of `return` does not state the names. */
export type Returned<R extends readonly AttentionReturn[]> = number extends R['length']
  ? Partial<Pick<ReturnedTensors, R[number]>>
  : Pick<ReturnedTensors, R[number]>;

/** One tensor (B, heads, rows, N_k) per {@link Capture}; without captures there is no such property. */
export type Captured<C extends readonly Capture[]> = C extends readonly []
  ? unknown
  : number extends C['length']
    ? {
        /** In the order of `capture`. */
        readonly captures?: readonly Tensor[];
      }
    : {
        /** In the order of `capture`. */
        readonly captures: { readonly [I in keyof C]: Tensor };
      };

/** Results of {@link Multihead.attention}. The caller disposes each of them, or the whole result with `using`. */
export type AttentionResult<R extends readonly AttentionReturn[] = [], O extends FloatDType = 'f32', C extends readonly Capture[] = []> = {
  /** (B, H_q, N_q, d_v). 0 for a query that sees no key. */
  readonly out: Tensor<O>;
} & Returned<R> &
  Captured<C> &
  DisposableResult;

/** Options of {@link Multihead.scores}. */
export interface ScoresOptions extends Omit<MaskOptions, 'dropout'>, Capture {
  /** One query head; excludes `heads`. Default all. */
  readonly head?: number | undefined;
  /** The largest number of rows per iteration. Default 64. */
  readonly chunk?: number | undefined;
}

/** Some rows of scores: a copy on the JavaScript heap, which needs no dispose(). */
export interface ScoreRows {
  /** Index of the query of the first row. */
  readonly firstRow: number;
  /** Number of rows. */
  readonly rows: number;
  /** (B, heads, rows, N_k) */
  readonly shape: number[];
  /** Row-major. */
  readonly data: Float32Array;
}

/**
 * Options of {@link Multihead.attentionVarlen}. They apply to each sequence by itself, with its own
 * lengths. There are no options that need a batch axis.
 */
export interface VarlenOptions<R extends readonly 'lse'[] = readonly 'lse'[], O extends FloatDType = FloatDType>
  extends Omit<MaskOptions, 'mask' | 'bias' | 'kvLengths' | 'rope' | 'dropout'>, Omit<OutputOptions<R, O>, 'capture'> {
  /** Sequence s is rows cuQ[s] to cuQ[s + 1] − 1 of q. Begins with 0, never decreases, ends with T_q. */
  readonly cuQ: Int32Array;
  /** Sequence s is rows cuK[s] to cuK[s + 1] − 1 of k and v. Begins with 0, never decreases, ends with T_k. */
  readonly cuK: Int32Array;
  /** In each sequence keys have positions from 0 on, queries from the offset of the alignment on. Default none. */
  readonly rope?: RopeRotation | undefined;
  /** Sequence s has the mask of batch entry 0 with seed + s · 2³² (modulo 2⁶⁴). Default none. */
  readonly dropout?: Dropout | undefined;
}

/** Results of {@link Multihead.attentionVarlen}: `out` (T_q, H_q, d_v), `lse` (H_q, T_q). */
export type VarlenResult<R extends readonly 'lse'[] = [], O extends FloatDType = 'f32'> = AttentionResult<R, O>;

/** The result of attention over some of the keys, for {@link Multihead.mergeAttention}. */
export interface PartialAttention<T extends TensorLike = TensorLike> {
  /** (B, H_q, N_q, d_v) */
  readonly out: T;
  /** (B, H_q, N_q) */
  readonly lse: T;
}

/**
 * Inputs of {@link Multihead.latentAttention}. With c a row of `latent`, head h has
 * key = [wUk[h]·c | kRope], value = wUv[h]·c, query = [qNope | qRope]. A cache needs to hold only c and
 * kRope: rank + d_rope numbers per token, for any number of heads.
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
export interface LatentAttentionOptions<R extends readonly ('lse' | 'weights')[] = readonly ('lse' | 'weights')[]>
  extends Omit<MaskOptions, 'qkNorm' | 'rope'>, Omit<OutputOptions<R, 'f32'>, 'outDtype' | 'capture'> {
  /**
   * `'expanded'`: computes the keys and values of every head first; for prefill.
   * `'absorbed'`: multiplies wUk into the query and wUv into the output, and attends to the latent
   * itself, as one key/value head for all; for decoding. Both give the same result up to rounding.
   */
  readonly form: 'expanded' | 'absorbed';
}
