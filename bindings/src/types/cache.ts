// The KV cache, for decoding one or several tokens at a time.

import type { AttentionResult, AttentionReturn, Capture, MaskOptions, OutputOptions } from './attention.js';
import type { DisposableObject, FloatDType, FloatTensorLike } from './tensor.js';

/**
 * Memory layout of a cache:
 * - `'contiguous'`: memory for `capacity` tokens per batch entry; a longer entry is an error
 * - `'ring'`: the same memory; new tokens overwrite the oldest. For sliding windows
 * - `'paged'`: pages of `pageSize` tokens, taken from a pool as sequences grow (arXiv:2309.06180)
 */
export type CacheLayout = 'contiguous' | 'ring' | 'paged';

/**
 * The dtype in which a cache stores keys and values. `'int8'` is symmetric, with one scale (largest
 * magnitude / 127) per token and head.
 */
export type CacheDType = FloatDType | 'int8';

/** Configuration of {@link Multihead.createCache}. */
export interface KVCacheConfig {
  /** Number of sequences; their lengths are independent. Default 1. */
  readonly batch?: number | undefined;
  /** H_kv */
  readonly numKvHeads: number;
  /** d_k, the head dim of keys. */
  readonly headDim: number;
  /** d_v, the head dim of values. Default `headDim`. */
  readonly valueDim?: number | undefined;
  /** The most tokens that one batch entry holds. */
  readonly capacity: number;
  /** Default `'contiguous'`. */
  readonly layout?: CacheLayout | undefined;
  /** Default `'f32'`. */
  readonly dtype?: CacheDType | undefined;
  /** Tokens per page, only with `'paged'`. Default 16. */
  readonly pageSize?: number | undefined;
  /** Pages in the pool, only with `'paged'`. Default: enough for all entries at full `capacity`. */
  readonly pages?: number | undefined;
}

/**
 * Options of {@link KVCache.attend}. Apply RoPE ({@link Multihead.rotate}) and QK-norm to keys before append(), and to
 * queries before attend().
 */
export interface CacheAttendOptions<
  R extends readonly AttentionReturn[] = readonly AttentionReturn[],
  O extends FloatDType = FloatDType,
  C extends readonly Capture[] = readonly Capture[],
>
  extends Omit<MaskOptions, 'causal' | 'kvLengths' | 'qkNorm' | 'rope'>, OutputOptions<R, O, C> {
  /**
   * `'bottomRight'`: the last query is at the last token of its entry. `true` is the same, and an error unless every
   * entry has as many tokens as there are queries. Default `false`.
   */
  readonly causal?: boolean | 'bottomRight' | undefined;
}

/**
 * Keys and values of past tokens. Entries of the batch grow and shrink independently; a call that
 * fails changes nothing.
 */
export interface KVCache extends DisposableObject {
  /** Number of entries, B. */
  readonly batch: number;
  /** Number of key/value heads, H_kv. */
  readonly numKvHeads: number;
  /** Head dim of keys, d_k. */
  readonly headDim: number;
  /** Head dim of values, d_v. */
  readonly valueDim: number;
  /** The most tokens that one entry holds. */
  readonly capacity: number;
  /** Memory layout of the tokens. */
  readonly layout: CacheLayout;
  /** Dtype of the stored keys and values. */
  readonly dtype: CacheDType;
  /** Size of keys, values, scales and page tables in bytes; part of {@link MemoryInfo.bytes}. */
  readonly bytes: number;

  /**
   * Appends n tokens, rounded to the cache's dtype: to nearest, ties to even.
   *
   * @param k (B, H_kv, n, d_k)
   * @param v (B, H_kv, n, d_v)
   * @param counts (B): entry b takes only the first counts[b] of the n tokens. Default n for all.
   * @throws {MultiheadError} `E_SHAPE`; `E_OPTION` if an entry would exceed its capacity, or the pool
   * has no page left; `E_DISPOSED`; `E_MEMORY`
   */
  append(k: FloatTensorLike, v: FloatTensorLike, counts?: Int32Array): void;

  /**
   * Attention over the cached tokens. The N_q queries belong to the newest tokens of each entry. N_k,
   * for masks, biases and weights, is the longest {@link KVCache.length}. Key j is token j, also in a
   * ring, where overwritten tokens are hidden. ALiBi distances count from the end of each entry.
   *
   * @param q (B, H_q, N_q, d_k). With a window over a ring, at most capacity − window.left queries at once
   * @throws {MultiheadError} as {@link Multihead.attention}; `E_OPTION` also if a window reaches back to tokens that a
   * ring has overwritten
   */
  attend<const R extends readonly AttentionReturn[] = [], const O extends FloatDType = 'f32', const C extends readonly Capture[] = []>(
    q: FloatTensorLike,
    options?: CacheAttendOptions<R, O, C>,
  ): AttentionResult<R, O, C>;

  /**
   * Truncates one batch entry, by default entry 0, to its first `length` tokens. In a ring, older tokens that were
   * overwritten stay hidden.
   *
   * @throws {MultiheadError} `E_OPTION` if there is no such entry, or it has fewer than `length`
   * tokens; `E_DISPOSED`
   */
  truncate(length: number, batch?: number): void;
  /**
   * Truncates every entry to length 0.
   *
   * @throws {MultiheadError} `E_DISPOSED`
   */
  clear(): void;
  /**
   * Number of tokens of an entry: those appended, less those truncated. Default entry 0.
   *
   * @throws {MultiheadError} `E_OPTION` if there is no such entry, `E_DISPOSED`
   */
  length(batch?: number): number;
  /**
   * Index of the first token of an entry that has not been overwritten; more than 0 only in a ring.
   * Default entry 0.
   *
   * @throws {MultiheadError} `E_OPTION` if there is no such entry, `E_DISPOSED`
   */
  firstKept(batch?: number): number;
}
