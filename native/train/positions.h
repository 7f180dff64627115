// The names of --positions.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "multihead/experiments.h"

namespace multihead::train {

// In the order of PositionKind.
inline const std::array<std::string, 4> kPositionNames = {"rope", "learned", "alibi", "none"};

inline PositionKind position_kind(const std::string& name) {
  uint8_t kind = 0;
  while (kPositionNames[kind] != name) ++kind;
  return static_cast<PositionKind>(kind);
}

}  // namespace multihead::train
