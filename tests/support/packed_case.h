// Random varlen sequences, and the rows that a rank holds.
#pragma once

#include <cstdint>
#include <vector>

#include "multihead/attention.h"
#include "support/random_case.h"
#include "support/sharded_case.h"

namespace multihead::testing {

struct PackedCase {
  int64_t heads, kv_heads, width, value_dim;
  std::vector<int32_t> cu_q{0}, cu_k{0};
  std::vector<float> q, k, v, sinks, gain, slopes;

  explicit PackedCase(uint64_t seed) {
    Random random(seed);
    kv_heads = random.integer(1, 3);
    heads = kv_heads * random.integer(1, 2);
    width = 2 * random.integer(1, 6);
    value_dim = random.integer(1, 9);
    const int64_t longest = random.pick<int64_t>({4, 12, 70});
    for (int64_t s = random.integer(0, 7); s > 0; --s) {
      cu_q.push_back(cu_q.back() + static_cast<int32_t>(random.integer(0, longest)));
      cu_k.push_back(cu_k.back() + static_cast<int32_t>(random.integer(0, longest)));
    }
    q = random.floats(queries() * heads * width);
    k = random.floats(keys() * kv_heads * width);
    v = random.floats(keys() * kv_heads * value_dim);
    sinks = random.floats(heads);
    gain = random.floats(width, 0.5F, 1.5F);
    slopes = random.floats(heads, 0.0F, 0.5F);
    causal_ = random.pick({Causal::none(), Causal::top_left(), Causal::bottom_right()});
    if (random.chance(0.3)) window_.left = random.integer(0, 4);
    if (random.chance(0.3)) softcap_ = 2.0F;
    has_sinks_ = random.chance(0.3);
    has_slopes_ = random.chance(0.3);
    if (random.chance(0.3)) rope_.style = Rope::Style::kHalf;
    if (random.chance(0.3)) dropout_ = {0.3F, seed};
    has_norm_ = random.chance(0.3);
  }

  int64_t queries() const { return cu_q.back(); }
  int64_t keys() const { return cu_k.back(); }
  AttentionOptions options() const {
    AttentionOptions options{.causal = causal_,
                             .window = window_,
                             .softcap = softcap_,
                             .rope = rope_,
                             .dropout = dropout_};
    if (has_sinks_) options.sinks = sinks;
    if (has_slopes_) options.alibi_slopes = slopes;
    if (has_norm_) {
      options.qk_norm = {.q_gain = gain, .k_gain = gain, .eps = 1e-3F, .enabled = true};
    }
    return options;
  }

 private:
  Causal causal_;
  Window window_;
  float softcap_ = 0.0F;
  bool has_sinks_, has_slopes_, has_norm_;
  Rope rope_;
  Dropout dropout_;
};

// Rows of (T, H * d).
inline std::vector<float> rows_of(const std::vector<float>& packed, int64_t row_width,
                                  const RowList& rows) {
  std::vector<float> result;
  for (const int64_t row : rows) {
    const auto first = packed.begin() + row * row_width;
    result.insert(result.end(), first, first + row_width);
  }
  return result;
}

}  // namespace multihead::testing
