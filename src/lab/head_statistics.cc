#include "multihead/head_statistics.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "lab/attention_patterns.h"

namespace multihead {
namespace {

double entropy_of(const float* weights, int64_t keys) {
  double sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    const auto weight = static_cast<double>(weights[j]);
    // The limit of w ln w at 0 is 0.
    if (weight > 0.0) sum -= weight * std::log(weight);
  }
  return sum;
}

}  // namespace

Status head_statistics(const ConstTensor& weights, std::span<const int32_t> tokens,
                       const HeadStatistics& statistics) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(engine::validate_rank(Name::kWeights, Axes::kStatistics, weights, 4));
    MULTIHEAD_TRY(
        engine::validate_exact(Name::kWeights, Axes::kStatistics, weights, weights.shape));
    const int64_t batch = weights.shape[0], heads = weights.shape[1];
    const int64_t queries = weights.shape[2], keys = weights.shape[3];
    if (queries > keys) {
      return shape_error(Name::kWeights, Message::kQueriesWithinKeys, Axes::kStatistics, {},
                         weights.shape);
    }
    const auto validate_count = [](Name name, size_t given, int64_t expected) -> Status {
      if (given == 0 || static_cast<int64_t>(given) == expected) return {};
      return shape_error(name, Message::kValueCount, expected, static_cast<int64_t>(given));
    };
    const bool induces = !statistics.induction.empty();
    MULTIHEAD_TRY(validate_count(Name::kEntropy, statistics.entropy.size(), heads));
    MULTIHEAD_TRY(validate_count(Name::kPreviousToken, statistics.previous_token.size(), heads));
    MULTIHEAD_TRY(validate_count(Name::kFirstToken, statistics.first_token.size(), heads));
    MULTIHEAD_TRY(validate_count(Name::kInduction, statistics.induction.size(), heads));
    MULTIHEAD_TRY(validate_count(Name::kTokens, tokens.size(), batch * keys));
    if (induces && tokens.empty() && batch * keys > 0) {
      return shape_error(Name::kTokens, Message::kTokensForInduction, batch * keys);
    }
    for (int64_t h = 0; h < heads; ++h) {
      lab::Mean entropy, previous, first, induction;
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t i = 0; i < queries; ++i) {
          const float* const row = weights.data + b * weights.strides[0] + h * weights.strides[1] +
                                   i * weights.strides[2];
          const int64_t position = i + keys - queries;
          entropy.add(entropy_of(row, keys));
          if (position == 0) continue;
          previous.add(static_cast<double>(row[position - 1]));
          first.add(static_cast<double>(row[0]));
          if (!induces) continue;
          const auto weight = lab::induction_weight(row, tokens.data() + b * keys, position);
          if (weight) induction.add(*weight);
        }
      }
      const auto head = static_cast<size_t>(h);
      if (!statistics.entropy.empty())
        statistics.entropy[head] = static_cast<float>(entropy.value());
      if (!statistics.previous_token.empty())
        statistics.previous_token[head] = static_cast<float>(previous.value());
      if (!statistics.first_token.empty())
        statistics.first_token[head] = static_cast<float>(first.value());
      if (induces) statistics.induction[head] = static_cast<float>(induction.value());
    }
    return {};
  });
}

}  // namespace multihead
