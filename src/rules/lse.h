// The log-sum-exp of a row of scores from its online softmax.
#pragma once

#include <cmath>
#include <limits>

#include "rules/shared.h"

namespace multihead::rules {

// Returns LSE = log(sum over keys of exp(factor * score)) = factor * reference + log(sum), where
// `sum` is the sum over keys of exp(factor * (score - reference)). Returns -inf for a row that sees
// no key. Computed in double, because factor * reference may be large. If share_of_sink() makes the
// sum infinite, all other terms are 0 relative to the sink.
MULTIHEAD_HOST_DEVICE inline float lse_of(float reference, float factor, double sum,
                                          float sink = -std::numeric_limits<float>::infinity()) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (sum == 0.0) return -std::numeric_limits<float>::infinity();
  if (sum == kInf && sink > -std::numeric_limits<float>::infinity()) return sink;
  return static_cast<float>(static_cast<double>(reference) * static_cast<double>(factor) +
                            std::log(sum));
}

// Returns exp(sink - factor * reference), which a sink, a score without a value, adds to the sum of
// a row. The reference is not raised to sink / factor, because that is no float: rounding it
// changes the sum by e^88 or more for sinks from 3e9 on. Infinite for a row that sees no key.
MULTIHEAD_HOST_DEVICE inline double share_of_sink(float sink, float reference, float factor) {
  return std::exp(static_cast<double>(sink) -
                  static_cast<double>(reference) * static_cast<double>(factor));
}

}  // namespace multihead::rules
