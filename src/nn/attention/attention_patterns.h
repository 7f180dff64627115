// Means, and patterns of attention, that statistics of heads and evaluations of experiments share.
#pragma once

#include <cstdint>
#include <optional>

namespace multihead::nn {

// Of the numbers added; 0 of none.
struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
};

// The weight of the query at `position` on all keys that follow an earlier occurrence of its token;
// none if its token has not occurred. `weights` are those of the keys, `tokens` the keys' tokens.
inline std::optional<double> induction_weight(const float* weights, const int32_t* tokens,
                                              int64_t position) {
  std::optional<double> sum;
  for (int64_t key = 1; key <= position; ++key) {
    if (tokens[key - 1] != tokens[position]) continue;
    sum = sum.value_or(0.0) + static_cast<double>(weights[key]);
  }
  return sum;
}

}  // namespace multihead::nn
