// Sampler: the next token of logits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/error/error.h"
#include "engine/error/guard.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

Status option_error(const char* name, const char* expected, double got) {
  return {StatusCode::kOption, name, expected, std::to_string(got)};
}

Status check(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return option_error("temperature", "0 or more", static_cast<double>(options.temperature));
  }
  if (options.top_k < 0) {
    return option_error("top_k", "0 or more", static_cast<double>(options.top_k));
  }
  if (!(options.top_p > 0) || !(options.top_p <= 1)) {
    return option_error("top_p", "more than 0, at most 1", static_cast<double>(options.top_p));
  }
  if (!(options.repetition_penalty > 0) || std::isinf(options.repetition_penalty)) {
    return option_error("repetition_penalty", "more than 0",
                        static_cast<double>(options.repetition_penalty));
  }
  return {};
}

// Number `index` of a seed, from 0 to less than 1: SplitMix64 (doi:10.1145/2660193.2660195).
double random_number(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  z ^= z >> 31U;
  return static_cast<double>(z >> 11U) * 0x1p-53;
}

}  // namespace

Status Sampler::choose(const Tensor& logits, std::span<const int32_t> before, int32_t& token) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(check(options_));
    const int64_t count = logits.shape.elements();
    if (count < 1 || logits.shape.rank() != 1 || logits.strides[0] != 1) {
      return {StatusCode::kShape, "logits", "(vocab_size)", logits.shape.to_string()};
    }
    float* const values = logits.data;
    const float penalty = options_.repetition_penalty;
    if (penalty != 1.0F) {
      // Each token once, however often it occurred.
      seen_.assign(static_cast<size_t>(count), false);
      for (const int32_t id : before) {
        if (id < 0 || id >= count || seen_[static_cast<size_t>(id)]) continue;
        seen_[static_cast<size_t>(id)] = true;
        values[id] = values[id] > 0 ? values[id] / penalty : values[id] * penalty;
      }
    }
    const auto best = static_cast<int32_t>(std::max_element(values, values + count) - values);
    if (options_.temperature == 0.0F || options_.top_k == 1) {
      token = best;
      return {};
    }
    // From the likeliest token on; of equal ones the first.
    order_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      order_[static_cast<size_t>(i)] = {values[i], static_cast<int32_t>(i)};
    }
    const auto before_in_order = [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    auto end = order_.end();
    if (options_.top_k > 0 && options_.top_k < count) {
      const auto kth = order_.begin() + static_cast<ptrdiff_t>(options_.top_k - 1);
      std::nth_element(order_.begin(), kth, order_.end(), before_in_order);
      const float least = kth->first;
      end = std::partition(order_.begin(), order_.end(),
                           [least](const auto& each) { return each.first >= least; });
    }
    std::sort(order_.begin(), end, before_in_order);
    const auto weight = [&](float value) {
      const double difference =
          static_cast<double>(value) - static_cast<double>(order_.front().first);
      return std::exp(difference / static_cast<double>(options_.temperature));
    };
    double sum = 0;
    for (auto each = order_.begin(); each != end; ++each) sum += weight(each->first);
    if (options_.top_p < 1.0F) {
      const double wanted = static_cast<double>(options_.top_p) * sum;
      double kept = 0;
      auto each = order_.begin();
      while (each != end && kept < wanted) kept += weight((each++)->first);
      end = each;
      sum = kept;
    }
    double left = random_number(options_.seed, drawn_++) * sum;
    token = order_.front().second;
    for (auto each = order_.begin(); each != end; ++each) {
      token = each->second;
      left -= weight(each->first);
      if (left < 0) break;
    }
    return {};
  });
}

}  // namespace multihead::models
