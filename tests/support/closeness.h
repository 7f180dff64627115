// Tolerances for comparisons of results with the oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "multihead/attention.h"
#include "reference/reference_attention.h"
#include "support/random_case.h"

namespace multihead::testing {

// Returns the difference of two numbers; NaN if one of them is NaN or the infinities differ. Scores
// near -3.4e38 are compared relatively.
inline double difference(float got, double expected) {
  const auto value = static_cast<double>(got);
  if (value == expected) return 0;
  return std::abs(value - expected) / std::max(1.0, std::abs(expected) / 8);
}

// Returns the largest difference; infinity if one side is NaN or the infinities differ.
inline double largest_difference(const std::vector<float>& got,
                                 const std::vector<double>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = difference(got[i], expected[i]);
    largest = std::isfinite(d) ? std::max(largest, d) : INFINITY;
  }
  return largest;
}

// Returns one unit in the last place of `value` in a 16-bit type.
inline double unit(double value, DType type) {
  const int bits = type == DType::kF16 ? 10 : 7;
  const int smallest = type == DType::kF16 ? -14 : -126;
  const int exponent = value == 0.0 ? smallest : std::max(std::ilogb(value), smallest);
  return std::ldexp(1.0, exponent - bits);
}

// Returns the output's error minus the allowed error. Allowed in f32: `tolerance`. Allowed in a
// 16-bit type: 1.5 units in the last place, or half a unit plus `tolerance`, whichever is larger.
inline double excess(const std::vector<float>& got, const std::vector<double>& expected, DType type,
                     double tolerance) {
  if (type == DType::kF32) return largest_difference(got, expected) - tolerance;
  if (got.size() != expected.size()) return INFINITY;
  double largest = -INFINITY;
  for (size_t i = 0; i < got.size(); ++i) {
    const double ulp = unit(expected[i], type);
    const double allowed = std::max(1.5 * ulp, 0.5 * ulp + tolerance);
    const double d = std::abs(static_cast<double>(got[i]) - expected[i]) - allowed;
    largest = std::isnan(d) ? INFINITY : std::max(largest, d);
  }
  return largest;
}

// Returns 2e-6 for inputs in [-1, 1]. Larger scores have a larger rounding error: a score of 40 has
// an error of 2e-6, which becomes the relative error of its weight.
inline double tolerance(const RandomCase& c, const reference::ReferenceOutputs& expected) {
  const auto width = static_cast<double>(c.q.shape[3]);
  const double scale = std::abs(
      static_cast<double>(c.options.scale.value_or(static_cast<float>(1.0 / std::sqrt(width)))));
  // Sum of the magnitudes of a dot product's terms.
  double size = scale * width * (c.options.qk_norm.enabled ? 2.0 : 0.25);
  // The largest score of each row.
  const auto keys = static_cast<size_t>(c.weights_shape[3]);
  for (size_t row = 0; keys > 0 && row < expected.masked.size(); row += keys) {
    const auto first = expected.masked.begin() + static_cast<int64_t>(row);
    const double maximum = *std::max_element(first, first + static_cast<int64_t>(keys));
    if (maximum > -1e30) size = std::max(size, std::abs(maximum));
  }
  return 2e-6 * std::max(1.0, size / 8);
}

}  // namespace multihead::testing
