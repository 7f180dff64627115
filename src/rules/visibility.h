// Who sees whom by position: one rule for every backend and the oracle.
#pragma once

#include <algorithm>
#include <cstdint>

#include "multihead/attention.h"

namespace multihead::rules {

// Keys first .. last-1. Empty where first >= last.
struct KeyRange {
  int64_t first = 0;
  int64_t last = 0;
  bool empty() const { return first >= last; }
  bool contains(int64_t key) const { return key >= first && key < last; }
};

// The rule of one batch entry: a query sees the keys of [query + first_shift, query + last_shift)
// that are present. Both ends of that range rise with the query.
struct EntryVisibility {
  KeyRange present;
  int64_t first_shift = 0, last_shift = 0;

  KeyRange of_query(int64_t query) const {
    return {std::max(present.first, query + first_shift),
            std::max<int64_t>(std::min(present.last, query + last_shift), 0)};
  }
};

// Causal order, window and lengths together leave each query one range of keys.
struct Visibility {
  int64_t queries = 0;
  int64_t keys = 0;
  bool causal = false;
  int64_t left = -1, right = -1;  // window; -1 is open
  Alignment alignment = Alignment::kTopLeft;
  int64_t offset = 0;                // read only with kOffset
  const int32_t* lengths = nullptr;  // (B): keys of each batch entry; null for all
  const int32_t* firsts = nullptr;   // (B): keys below are gone from a cache; null for none

  // The first key that is there, and the end of those.
  KeyRange present(int64_t batch) const {
    return {firsts == nullptr ? 0 : firsts[batch], lengths == nullptr ? keys : lengths[batch]};
  }

  // A query's position among the keys, less its index.
  int64_t shift(int64_t batch) const {
    switch (alignment) {
      case Alignment::kBottomRight:
        return keys - queries;
      case Alignment::kBottomRightOfLength:
        return present(batch).last - queries;
      case Alignment::kOffset:
        return offset;
      case Alignment::kNone:
      case Alignment::kTopLeft:
        break;
    }
    return 0;
  }

  int64_t position(int64_t batch, int64_t query) const { return query + shift(batch); }

  EntryVisibility of_entry(int64_t batch) const {
    constexpr int64_t kOpen = int64_t{1} << 62;
    const int64_t at = shift(batch);
    EntryVisibility entry{present(batch), left < 0 ? -kOpen : at - left, kOpen};
    if (causal) entry.last_shift = at + 1;
    if (right >= 0) entry.last_shift = std::min(entry.last_shift, at + right + 1);
    return entry;
  }

  KeyRange of_query(int64_t batch, int64_t query) const { return of_entry(batch).of_query(query); }
};

inline Visibility make_visibility(const AttentionOptions& options, int64_t queries, int64_t keys) {
  const bool causal = options.causal.alignment != Alignment::kNone;
  // Positions are sums of an offset, a side and a query: none of them may overflow.
  constexpr int64_t kFar = int64_t{1} << 60;
  const auto bounded = [&](int64_t side) { return side < 0 ? -1 : std::min(side, kFar); };
  return {.queries = queries,
          .keys = keys,
          .causal = causal,
          .left = bounded(options.window.left),
          .right = bounded(options.window.right),
          .alignment = causal ? options.causal.alignment : options.window.alignment,
          .offset = std::clamp(causal ? options.causal.offset : options.window.offset, -kFar, kFar),
          .lengths = options.kv_lengths.empty() ? nullptr : options.kv_lengths.data()};
}

}  // namespace multihead::rules
