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

  int64_t position(int64_t batch, int64_t query) const {
    switch (alignment) {
      case Alignment::kBottomRight:
        return query + keys - queries;
      case Alignment::kBottomRightOfLength:
        return query + present(batch).last - queries;
      case Alignment::kOffset:
        return query + offset;
      case Alignment::kNone:
      case Alignment::kTopLeft:
        break;
    }
    return query;
  }

  KeyRange of_query(int64_t batch, int64_t query) const {
    KeyRange range = present(batch);
    const int64_t p = position(batch, query);
    if (causal) range.last = std::min(range.last, p + 1);
    if (right >= 0) range.last = std::min(range.last, p + right + 1);
    if (left >= 0) range.first = std::max(range.first, p - left);
    range.last = std::max<int64_t>(range.last, 0);
    return range;
  }
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
