// Arithmetic of counts, sizes and index ranges, for all backends.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace multihead::rules {

// By value: std::min() and std::max() take references, which nvcc keeps in local memory.
constexpr int64_t least_of(int64_t a, int64_t b) { return b < a ? b : a; }
constexpr int64_t most_of(int64_t a, int64_t b) { return a < b ? b : a; }
constexpr int64_t limited(int64_t value, int64_t least, int64_t most) {
  return least_of(most_of(value, least), most);
}

// Number of parts of `size` that cover `count`, which is not negative.
template <std::integral T>
constexpr T ceil_div(T count, std::type_identity_t<T> size) {
  return (count + size - 1) / size;
}

// The least multiple of `step` that is not less than `value`.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> step) {
  return ceil_div(value, step) * step;
}

// Returns a + b, or the nearest 64-bit integer if that overflows.
constexpr int64_t saturating_add(int64_t a, int64_t b) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  if (b > 0 && a > kHighest - b) return kHighest;
  if (b < 0 && a < kLowest - b) return kLowest;
  return a + b;
}

// Indices first .. last - 1. Empty if first >= last.
struct Range {
  int64_t first = 0;
  int64_t last = 0;
  constexpr bool empty() const { return first >= last; }
  constexpr bool contains(int64_t index) const { return index >= first && index < last; }
};

}  // namespace multihead::rules
