// Sampler: the next token of logits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>

#include "engine/error/error.h"
#include "models/config_reader.h"
#include "models/token_rules.h"
#include "multihead/models.h"

namespace multihead::models {
namespace {

Status option_error(const char* name, const char* expected, double got) {
  return {StatusCode::kOption, name, expected, text_of(got)};
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
  const float penalty = options.repetition_penalty.value_or(1.0F);
  if (!(penalty > 0) || std::isinf(penalty)) {
    return option_error("repetition_penalty", "more than 0", static_cast<double>(penalty));
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
    if (values == nullptr) return {StatusCode::kShape, "logits", "(vocab_size)", "a null pointer"};
    MULTIHEAD_TRY(check_rules(rules_, count));
    apply_rules(rules_, before, begin_, end_, {values, static_cast<size_t>(count)});
    // Compared as x < infinity, which is false for a NaN.
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float* const wrong =
        std::find_if(values, values + count, [](float value) { return !(value < kInfinity); });
    if (wrong != values + count || *std::max_element(values, values + count) == -kInfinity) {
      return {StatusCode::kOption, "logits",
              "finite numbers, or -infinity where a token is not wanted",
              wrong != values + count ? text_of(static_cast<double>(*wrong)) + " for token " +
                                            std::to_string(wrong - values)
                                      : "-infinity alone"};
    }
    penalize(before, options_.repetition_penalty.value_or(1.0F), seen_,
             {values, static_cast<size_t>(count)});
    token = static_cast<int32_t>(std::max_element(values, values + count) - values);
    if (options_.temperature == 0.0F || options_.top_k == 1) return {};
    // From the likeliest token on, of equal ones the first. A heap, because few of many thousand
    // tokens are needed in this order: order_[0 .. unordered - 1] is the heap, and the likeliest
    // token so far is the last element.
    const auto size = static_cast<size_t>(count);
    order_.resize(size);
    std::iota(order_.begin(), order_.end(), 0);
    const auto is_less_likely = [values](int32_t a, int32_t b) {
      return values[a] != values[b] ? values[a] < values[b] : a > b;
    };
    std::make_heap(order_.begin(), order_.end(), is_less_likely);
    size_t unordered = size;
    const auto likeliest = [&](size_t rank) {
      for (; size - unordered <= rank; --unordered) {
        std::pop_heap(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(unordered),
                      is_less_likely);
      }
      return order_[size - 1 - rank];
    };
    const auto largest = static_cast<double>(values[token]);
    const auto weight = [&](int32_t id) {
      return std::exp((static_cast<double>(values[id]) - largest) /
                      static_cast<double>(options_.temperature));
    };
    size_t kept = size;
    double sum = 0;
    if (options_.top_k > 0 && options_.top_k < count) {
      kept = static_cast<size_t>(options_.top_k);
      const float least = values[likeliest(kept - 1)];
      while (kept < size && values[likeliest(kept)] == least) ++kept;
      for (size_t rank = 0; rank < kept; ++rank) sum += weight(likeliest(rank));
    } else {
      for (int32_t id = 0; id < count; ++id) sum += weight(id);
    }
    if (options_.top_p < 1.0F) {
      const double wanted = static_cast<double>(options_.top_p) * sum;
      const size_t most = kept;
      sum = 0;
      for (kept = 0; kept < most && sum < wanted; ++kept) sum += weight(likeliest(kept));
    }
    double left = random_number(options_.seed, drawn_++) * sum;
    for (size_t rank = 0; rank < kept && left >= 0; ++rank) {
      const double share = weight(likeliest(rank));
      if (share == 0) break;  // -inf: `left` is what rounding left
      token = likeliest(rank);
      left -= share;
    }
    return {};
  });
}

}  // namespace multihead::models
