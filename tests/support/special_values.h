// Float values that many tests use.
#pragma once

#include <limits>

namespace multihead {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// What outputs hold before a call that must not write them.
inline constexpr float kUntouched = 42.0F;

}  // namespace multihead
