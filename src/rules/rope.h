// Rotary position embedding of one vector (RoPE, arXiv:2104.09864), shared by engine and oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "multihead/rope.h"
#include "rules/shared.h"

namespace multihead::rules {

// Returns the angle, in radians, of pair `pair` at position 1: base^(-2 pair / rotary_dim).
MULTIHEAD_HOST_DEVICE inline double rope_frequency(int64_t pair, double base, int64_t rotary_dim) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
}

MULTIHEAD_HOST_DEVICE inline double rope_angle(int64_t position, int64_t pair, double base,
                                               int64_t rotary_dim) {
  return static_cast<double>(position) * rope_frequency(pair, base, rotary_dim);
}

// Writes cos and sin of the angles at a position, rotary_dim / 2 numbers each. Computed in double
// even for float tables: at position 100000 a float angle would be off by up to 0.004.
template <class T>
void fill_angles(int64_t position, double base, int64_t rotary_dim, T* cos, T* sin) {
  for (int64_t pair = 0; pair < rotary_dim / 2; ++pair) {
    const double angle = rope_angle(position, pair, base, rotary_dim);
    cos[pair] = static_cast<T>(std::cos(angle));
    sin[pair] = static_cast<T>(std::sin(angle));
  }
}

// The two elements that a pair rotates.
struct Pair {
  int64_t first, second;
};
constexpr Pair rotated_pair(int64_t pair, int64_t pairs, Rope::Style style) {
  if (style == Rope::Style::kHalf) return {pair, pair + pairs};
  return {2 * pair, 2 * pair + 1};
}

// Rotates the first rotary_dim (even, <= width) elements and copies the others. `out` may be `in`.
template <class T>
void rotate_vector(const T* in, T* out, int64_t width, int64_t rotary_dim, Rope::Style style,
                   const T* cos, const T* sin) {
  const int64_t pairs = style == Rope::Style::kNone ? 0 : rotary_dim / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const auto [first, second] = rotated_pair(pair, pairs, style);
    const T x = in[first], y = in[second];
    out[first] = x * cos[pair] - y * sin[pair];
    out[second] = x * sin[pair] + y * cos[pair];
  }
  if (out != in) std::copy(in + 2 * pairs, in + width, out + 2 * pairs);
}

}  // namespace multihead::rules
