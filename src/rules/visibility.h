// The rule of all backends for the keys that a query sees by position.
#pragma once

#include <cstdint>
#include <limits>

#include "multihead/attention.h"

namespace multihead::rules {

// By value: std::min() and std::max() take references, which nvcc keeps in local memory.
constexpr int64_t least_of(int64_t a, int64_t b) { return b < a ? b : a; }
constexpr int64_t most_of(int64_t a, int64_t b) { return a < b ? b : a; }
constexpr int64_t limited(int64_t value, int64_t least, int64_t most) {
  return least_of(most_of(value, least), most);
}

// Keys first .. last-1. Empty if first >= last.
struct KeyRange {
  int64_t first = 0;
  int64_t last = 0;
  constexpr bool empty() const { return first >= last; }
  constexpr bool contains(int64_t key) const { return key >= first && key < last; }
};

// Returns a + b, or the nearest 64-bit integer if that overflows.
constexpr int64_t saturating_add(int64_t a, int64_t b) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  if (b > 0 && a > kHighest - b) return kHighest;
  if (b < 0 && a < kLowest - b) return kLowest;
  return a + b;
}

// Queries first .. last-1. Empty if first >= last.
struct QueryRange {
  int64_t first = 0;
  int64_t last = 0;
  constexpr bool empty() const { return first >= last; }
};

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
  const bool causal = options.causal.alignment != Alignment::kNone;
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
