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

struct Visibility {
  int64_t keys = 0;
  bool causal = false;
  int64_t offset = 0;  // position of query i among the keys is i + offset

  KeyRange of_query(int64_t query) const {
    if (!causal) return {0, keys};
    return {0, std::clamp<int64_t>(query + offset + 1, 0, keys)};
  }
};

inline Visibility make_visibility(const Causal& causal, int64_t queries, int64_t keys) {
  Visibility rule{.keys = keys};
  switch (causal.alignment) {
    case Causal::Alignment::kNone:
      return rule;
    case Causal::Alignment::kTopLeft:
      break;
    case Causal::Alignment::kBottomRight:
      rule.offset = keys - queries;
      break;
    case Causal::Alignment::kOffset:
      // Beyond these bounds every query sees nothing, or everything; the clamp keeps
      // query + offset far from overflow.
      rule.offset = std::clamp(causal.offset, -queries, keys);
      break;
  }
  rule.causal = true;
  return rule;
}

}  // namespace multihead::rules
