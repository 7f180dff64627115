// The cache of keys and values for decoding one token, or several, at a time.

import type {
  AttentionResult,
  AttentionReturn,
  Capture,
  MaskOptions,
  OutputOptions,
} from './attention_types.js';
import type { FloatDType, FloatTensorLike } from './tensor_types.js';

/**
 * - `'contiguous'`: room for `capacity` tokens of each entry
 * - `'ring'`: the same, and the newest `capacity` tokens overwrite the oldest; for windows
 * - `'paged'`: pages of `pageSize` tokens, taken from a pool as sequences grow (arXiv:2309.06180)
 */
export type CacheLayout = 'contiguous' | 'ring' | 'paged';

/** What a cache keeps. `'int8'` is symmetric, with one scale (largest magnitude / 127) for each token and head. */
export type CacheDType = FloatDType | 'int8';

/** Configuration of {@link Multihead.createCache}. */
export interface KVCacheConfig {
  /** Sequences, which grow independently. Default 1. */
  readonly batch?: number | undefined;
  readonly kvHeads: number;
  /** d_k */
  readonly keyWidth: number;
  /** d_v. Default `keyWidth`. */
  readonly valueWidth?: number | undefined;
  /** Tokens of one entry. */
  readonly capacity: number;
  /** Default `'contiguous'`. */
  readonly layout?: CacheLayout | undefined;
  /** Default `'f32'`. */
  readonly dtype?: CacheDType | undefined;
  /** Tokens of a page, only with `'paged'`. Default 16. */
  readonly pageSize?: number | undefined;
  /** Pages in the pool, only with `'paged'`. Default as many as every entry needs at capacity. */
  readonly pages?: number | undefined;
}

/** Options of {@link KVCache.attend}. Keys are rotated ({@link Multihead.rotate}) and normalised before append(). */
export interface CacheAttendOptions<
  R extends readonly AttentionReturn[] = readonly AttentionReturn[],
  O extends FloatDType = FloatDType,
  C extends readonly Capture[] = readonly Capture[],
>
  extends Omit<MaskOptions, 'causal' | 'kvLengths' | 'qkNorm' | 'rope'>, OutputOptions<R, O, C> {
  /** `'bottomRight'` aligns the queries with the end of each entry. Default `false`. */
  readonly causal?: false | 'bottomRight' | undefined;
}

/**
 * Keys and values of past tokens. Entries of the batch grow and shrink independently; a call that
 * fails changes nothing.
 */
export interface KVCache {
  readonly batch: number;
  readonly kvHeads: number;
  readonly keyWidth: number;
  readonly valueWidth: number;
  readonly capacity: number;
  readonly layout: CacheLayout;
  readonly dtype: CacheDType;
  /** Bytes of keys, values, scales and tables: its part of {@link MemoryInfo.bytes}. */
  readonly bytes: number;
  readonly disposed: boolean;

  /**
   * Adds n tokens, rounded to the cache's dtype, to nearest even.
   *
   * @param k (B, H_kv, n, d_k)
   * @param v (B, H_kv, n, d_v)
   * @param counts (B): entry b takes only the first counts[b] of the n. Default n for all.
   * @throws {MultiheadError} `E_SHAPE`; `E_OPTION` when an entry would outgrow its capacity, or the
   * pool has no page left; `E_DISPOSED`; `E_MEMORY`
   */
  append(k: FloatTensorLike, v: FloatTensorLike, counts?: Int32Array): void;

  /**
   * Attention over the tokens that are kept. The N_q queries are the newest tokens of each entry, and N_k, for
   * masks, biases and weights, is the longest {@link KVCache.length}. Keys have the indices of their
   * tokens, also in a ring, where the oldest are hidden. ALiBi counts from the end of each entry.
   *
   * @param q (B, H_q, N_q, d_k)
   * @throws {MultiheadError} as {@link Multihead.attention}
   */
  attend<
    const R extends readonly AttentionReturn[] = [],
    const O extends FloatDType = 'f32',
    const C extends readonly Capture[] = [],
  >(
    q: FloatTensorLike,
    options?: CacheAttendOptions<R, O, C>,
  ): AttentionResult<R, O, C>;

  /**
   * Forgets the tokens of one entry from `length` on. In a ring, older tokens that these have
   * overwritten do not come back: their places stay hidden.
   *
   * @throws {MultiheadError} `E_OPTION` when there is no such entry, or `length` is more than there is
   */
  truncate(batch: number, length: number): void;
  /** Forgets everything. */
  clear(): void;
  /** Tokens appended to an entry and not truncated. Default entry 0. */
  length(batch?: number): number;
  /** The first of them that is still kept: more than 0 only in a ring. Default entry 0. */
  firstKept(batch?: number): number;
  /** Frees the memory. A second call does nothing. */
  dispose(): void;
  [Symbol.dispose](): void;
}
