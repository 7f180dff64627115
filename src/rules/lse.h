// The log-sum-exp of a row of scores from its online softmax.
#pragma once

#include <cmath>
#include <limits>

#include "rules/host_device.h"

namespace multihead::rules {

// log(sum of exp(factor * score)) where `sum` is that of exp(factor * (score - reference)); -inf
// for a row that sees nothing. In double: factor * reference may be large.
MULTIHEAD_HOST_DEVICE inline float lse_of(float reference, float factor, double sum) {
  if (sum == 0.0) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(static_cast<double>(reference) * static_cast<double>(factor) +
                            std::log(sum));
}

}  // namespace multihead::rules
