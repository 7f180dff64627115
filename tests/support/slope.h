// Checks gradients by finite differences of the loss.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "support/random_case.h"

namespace multihead::testing {

// Returns a random direction: multiples of 1/16 in [-1, 1].
inline std::vector<float> random_direction(Random& random, size_t count) {
  std::vector<float> direction(count);
  // Sixteenths, so that small steps along it are exact.
  for (float& v : direction) v = static_cast<float>(random.integer(-16, 16)) / 16.0F;
  return direction;
}

// Returns the derivative of loss() when `numbers` move along `direction`, by central differences
// with two steps (Richardson extrapolation). Restores the numbers.
template <class Loss>
double slope(std::span<float> numbers, std::span<const float> direction, const Loss& loss) {
  const std::vector<float> before(numbers.begin(), numbers.end());
  const auto at = [&](float step) {
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = before[i] + step * direction[i];
    return loss();
  };
  const auto central = [&](float step) {
    return (at(step) - at(-step)) / (2.0 * static_cast<double>(step));
  };
  constexpr float kStep = 1.0F / 64;
  const double result = (4 * central(kStep / 2) - central(kStep)) / 3;
  std::copy(before.begin(), before.end(), numbers.begin());
  return result;
}

inline double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

// Returns the root of the sum of squares of a * b, the typical size of dot(a, b).
inline double size_of_dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double product = static_cast<double>(a[i]) * static_cast<double>(b[i]);
    sum += product * product;
  }
  return std::sqrt(sum);
}

}  // namespace multihead::testing
