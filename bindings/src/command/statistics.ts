// Statistics of one attention map, as headStatistics() of multihead/lab defines them. Here the entropy is in bits, and
// the weight on the token itself is one more number.

/** Means over the queries that each definition names. */
export interface Statistics {
  /** −Σ w log₂ w: 0 if one key has all the weight, log₂ n if n keys have equal weights. All queries. */
  readonly entropy: number;
  /** Weight on the key just before the query. Queries from the second one. */
  readonly previous: number;
  /** Weight on the first key. Queries from the second one. */
  readonly first: number;
  /** Weight on the query's own position. All queries. */
  readonly self: number;
  /** Weight on keys that follow an earlier occurrence of the query's token; null if no token occurs twice. */
  readonly induction: number | null;
}

class Mean {
  #sum = 0;
  #count = 0;

  add(value: number): void {
    this.#sum += value;
    this.#count += 1;
  }

  /** 0 without values. */
  get value(): number {
    return this.#count === 0 ? 0 : this.#sum / this.#count;
  }

  get orNull(): number | null {
    return this.#count === 0 ? null : this.value;
  }
}

/** @param weights (N, N), a row for each query @param ids N token ids */
export function statisticsOf(weights: Float32Array, ids: readonly number[]): Statistics {
  const [entropy, previous, first, self, induction] = [new Mean(), new Mean(), new Mean(), new Mean(), new Mean()];
  const count = ids.length;
  for (let query = 0; query < count; query += 1) {
    const row = weights.subarray(query * count, (query + 1) * count);
    entropy.add(row.reduce((sum, weight) => (weight > 0 ? sum - weight * Math.log2(weight) : sum), 0));
    self.add(row[query] as number);
    if (query === 0) continue;
    previous.add(row[query - 1] as number);
    first.add(row[0] as number);
    let followers: number | undefined;
    for (let key = 1; key <= query; key += 1) {
      if (ids[key - 1] === ids[query]) followers = (followers ?? 0) + (row[key] as number);
    }
    if (followers !== undefined) induction.add(followers);
  }
  return { entropy: entropy.value, previous: previous.value, first: first.value, self: self.value, induction: induction.orNull };
}
