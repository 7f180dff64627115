// The log-sum-exp of a row of scores from its online softmax.
#pragma once

#include <cmath>
#include <limits>

#include "rules/host_device.h"

namespace multihead::rules {

// Returns LSE = log(sum over keys of exp(factor * score)) = factor * reference + log(sum), where
// `sum` is the sum over keys of exp(factor * (score - reference)). Returns -inf for a row that sees
// no key. Computed in double, because factor * reference may be large.
MULTIHEAD_HOST_DEVICE inline float lse_of(float reference, float factor, double sum) {
  if (sum == 0.0) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(static_cast<double>(reference) * static_cast<double>(factor) +
                            std::log(sum));
}

}  // namespace multihead::rules
