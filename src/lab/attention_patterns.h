// Means and attention patterns, shared by the statistics of heads and the evaluation of
// experiments.
#pragma once

#include <cstdint>
#include <optional>

namespace multihead::lab {

// Mean of the added numbers; 0 if none was added.
struct Mean {
  double sum = 0;
  int64_t count = 0;
  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return count == 0 ? 0.0 : sum / static_cast<double>(count); }
};

// Returns the sum of the query's weights on keys that follow an earlier occurrence of the query's
// token; nullopt if the token has not occurred before. `weights` and `tokens` have one entry per
// key.
inline std::optional<double> induction_weight(const float* weights, const int32_t* tokens,
                                              int64_t position) {
  std::optional<double> sum;
  for (int64_t key = 1; key <= position; ++key) {
    if (tokens[key - 1] != tokens[position]) continue;
    sum = sum.value_or(0.0) + static_cast<double>(weights[key]);
  }
  return sum;
}

}  // namespace multihead::lab
