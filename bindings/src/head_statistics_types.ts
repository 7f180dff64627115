// Options and result of headStatistics().

/** Options of {@link Multihead.headStatistics}. */
export interface HeadStatisticsOptions {
  /** (B · N_k): the token id of each key, required for `induction`. Default none. */
  readonly tokens?: Int32Array | undefined;
}

/**
 * Statistics of the attention weights, one number for each of the H heads: the mean over the batch and
 * over those queries that the definition names, or 0 if there are none. Query i is at position
 * i + N_k − N_q.
 */
export interface HeadStatistics {
  /** −Σ w ln w: 0 if one key has all the weight, ln n if n keys have equal weights. All queries. */
  readonly entropy: Float32Array;
  /** Weight on the key just before the query's position. Queries at positions ≥ 1. */
  readonly previousToken: Float32Array;
  /** Weight on key 0. Queries at positions ≥ 1. */
  readonly firstToken: Float32Array;
  /**
   * Weight on the keys that directly follow an earlier occurrence of the query's token (Olsson et al.
   * 2022, arXiv:2209.11895). Queries whose token occurred before. Missing without `tokens`.
   */
  readonly induction?: Float32Array;
}
