// The rule of all backends for the keys that a query sees by position.
#pragma once

#include <cstdint>

#include "multihead/attention.h"
#include "rules/integers.h"

namespace multihead::rules {

// Names that say what a range counts.
using KeyRange = Range;
using QueryRange = Range;

// Visibility in one batch entry: a query sees the existing keys in [query + first_shift, query +
// last_shift). Both ends of the range increase with the query.
struct EntryVisibility {
  KeyRange present;
  int64_t first_shift = 0, last_shift = 0;

  constexpr KeyRange seen_by(int64_t query) const {
    return {most_of(present.first, query + first_shift),
            most_of(least_of(present.last, query + last_shift), 0)};
  }

  // Returns the queries that see some of the keys; the range may exceed the existing queries.
  constexpr QueryRange queries_seeing(const KeyRange& keys) const {
    const int64_t first = most_of(keys.first, present.first);
    const int64_t last = least_of(keys.last, present.last);
    if (first >= last) return {};
    return {first - last_shift + 1, last - first_shift};
  }
};

// Visibility of a call. Causal order, window and lengths leave each query one range of keys.
//
// A call may be a shard of a larger problem: its query 0 is query first_query of the whole problem,
// its keys are first_key .. first_key + shard_keys - 1. Alignments, lengths and window refer to the
// whole problem; returned ranges are keys of the shard.
struct Visibility {
  int64_t queries = 0;  // of the whole problem
  int64_t keys = 0;
  bool causal = false;
  int64_t left = -1, right = -1;  // window; -1: unlimited
  Alignment alignment = Alignment::kTopLeft;
  int64_t offset = 0;                // read only with kOffset
  const int32_t* lengths = nullptr;  // (B): number of keys per batch entry; null for all
  const int32_t* firsts = nullptr;   // (B): first key that a cache still has; null for 0
  int64_t first_query = 0, first_key = 0;
  int64_t shard_keys = 0;

  // Returns the range of the shard's keys that exist.
  constexpr KeyRange present(int64_t batch) const {
    const KeyRange whole = whole_present(batch);
    return {limited(whole.first - first_key, 0, shard_keys),
            limited(whole.last - first_key, 0, shard_keys)};
  }

  // Returns the position of a query of the shard among the keys of the whole problem.
  constexpr int64_t position(int64_t batch, int64_t query) const {
    return saturating_add(saturating_add(query, first_query), shift(batch));
  }

  constexpr EntryVisibility entry(int64_t batch) const {
    // Unlimited: beyond all keys, but small enough to add a query index.
    constexpr int64_t kOpen = int64_t{1} << 62;
    const int64_t at = saturating_add(shift(batch), first_query - first_key);
    const int64_t first = left < 0 ? -kOpen : saturating_add(at, -left);
    int64_t end = kOpen;
    if (causal) end = saturating_add(at, 1);
    if (right >= 0) end = least_of(end, saturating_add(saturating_add(at, right), 1));
    return {present(batch), limited(first, -kOpen, kOpen), limited(end, -kOpen, kOpen)};
  }

  constexpr KeyRange seen_by(int64_t batch, int64_t query) const {
    return entry(batch).seen_by(query);
  }

  // ALiBi's distance between query i and key j of the shard is |i + alibi_shift() - j|. The last
  // query of the whole problem has the position of the last key; in a cache, of the last key of its
  // entry.
  constexpr int64_t alibi_shift(int64_t batch) const {
    const int64_t end = firsts != nullptr ? whole_present(batch).last : keys;
    return end - queries + first_query - first_key;
  }

 private:
  constexpr KeyRange whole_present(int64_t batch) const {
    return {firsts == nullptr ? 0 : firsts[batch], lengths == nullptr ? keys : lengths[batch]};
  }

  // Returns a query's position among the keys minus its index, in the whole problem.
  constexpr int64_t shift(int64_t batch) const {
    switch (alignment) {
      case Alignment::kBottomRight:
        return keys - queries;
      case Alignment::kBottomRightOfLength:
        return whole_present(batch).last - queries;
      case Alignment::kOffset:
        return offset;
      case Alignment::kNone:
      case Alignment::kTopLeft:
        break;
    }
    return 0;
  }
};

constexpr Visibility make_visibility(const AttentionOptions& options, int64_t queries,
                                     int64_t keys) {
  const bool causal = options.causal.given();
  return {.queries = queries,
          .keys = keys,
          .causal = causal,
          .left = options.window.left,
          .right = options.window.right,
          .alignment = causal ? options.causal.alignment : options.window.alignment,
          .offset = causal ? options.causal.offset : options.window.offset,
          .lengths = options.kv_lengths.empty() ? nullptr : options.kv_lengths.data(),
          .shard_keys = keys};
}

}  // namespace multihead::rules
