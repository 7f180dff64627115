// The names for --positions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "multihead/experiments.h"

namespace multihead::train {

// In the order of PositionKind.
inline const std::array<std::string, 4> kPositionNames = {"rope", "learned", "alibi", "none"};

inline std::string position_name(int64_t kind) {
  const auto at = static_cast<size_t>(kind);
  return at < kPositionNames.size() ? kPositionNames[at] : "number " + std::to_string(kind);
}

inline PositionKind position_kind(const std::string& name) {
  uint8_t kind = 0;
  while (kPositionNames[kind] != name) ++kind;
  return static_cast<PositionKind>(kind);
}

}  // namespace multihead::train
