// Divisions of indices in kernels.
#pragma once

#include <cstdint>

namespace multihead::cuda {

struct Quotient {
  int64_t quotient, remainder;
};

// Divides a >= 0 by b > 0, in 32 bits if both fit: a 64-bit division takes about a hundred
// instructions.
constexpr Quotient divide(int64_t a, int64_t b) {
  if (((a | b) >> 32U) != 0) return {a / b, a % b};
  const auto x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
  return {x / y, x % y};
}

}  // namespace multihead::cuda
