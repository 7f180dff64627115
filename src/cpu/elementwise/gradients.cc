// Backward of norms, activations and embeddings, and dropout of rows.
#include "cpu/elementwise/gradients.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/elementwise/export_range.h"
#include "multihead/elementwise.h"
#include "rules/dropout_mask.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/gradients.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/math-inl.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using V = hn::Vec<DF>;

// With n = (x - mean) r, r = 1 / sqrt(variance + eps), and g = d_y weight:
//   d_x = r (g - mean(g) - n mean(g n)), without mean(g) if not centered
//   d_weight += d_y n, d_bias += d_y
void norm_backward(const NormBackward& p, int64_t first, int64_t end) {
  const DF d;
  const auto width = static_cast<float>(p.width);
  for (int64_t row = first; row < end; ++row) {
    const float* const x = p.x + row * p.width;
    const float* const d_y = p.d_y + row * p.width;
    float* const d_x = p.d_x + row * p.width;
    V mean = hn::Zero(d), squares = mean, sum_g = mean, sum_gn = mean;
    if (p.centered) {
      over_columns_compact(p.width, [&](size_t column, auto lanes) {
        mean = hn::Add(mean, lanes.load(x + column));
      });
      mean = hn::Set(d, hn::ReduceSum(d, mean) / width);
    }
    over_columns_compact(p.width, [&](size_t column, auto lanes) {
      const V centered = lanes.or_else(hn::Sub(lanes.load(x + column), mean), 0.0F);
      squares = mul_add(centered, centered, squares);
    });
    const V factor = hn::Set(d, 1.0F / std::sqrt(hn::ReduceSum(d, squares) / width + p.eps));
    // d_y is 0 in lanes beyond the row.
    over_columns_compact(p.width, [&](size_t column, auto lanes) {
      V g = lanes.load(d_y + column);
      const V n = hn::Mul(hn::Sub(lanes.load(x + column), mean), factor);
      const V gn = hn::Mul(g, n);
      if (p.d_weight != nullptr) {
        float* const to = p.d_weight + column;
        lanes.store(hn::Add(lanes.load(to), gn), to);
      }
      if (p.d_bias != nullptr) {
        float* const to = p.d_bias + column;
        lanes.store(hn::Add(lanes.load(to), g), to);
      }
      if (p.weight != nullptr) g = hn::Mul(g, lanes.load(p.weight + column));
      sum_g = hn::Add(sum_g, g);
      sum_gn = mul_add(g, n, sum_gn);
    });
    const V mean_g = hn::Set(d, p.centered ? hn::ReduceSum(d, sum_g) / width : 0.0F);
    const V mean_gn = hn::Set(d, hn::ReduceSum(d, sum_gn) / width);
    over_columns_compact(p.width, [&](size_t column, auto lanes) {
      V g = lanes.load(d_y + column);
      if (p.weight != nullptr) g = hn::Mul(g, lanes.load(p.weight + column));
      const V n = hn::Mul(hn::Sub(lanes.load(x + column), mean), factor);
      V result = hn::Mul(factor, hn::Sub(hn::Sub(g, mean_g), hn::Mul(n, mean_gn)));
      if (p.adds_to_d_x) result = hn::Add(lanes.load(d_x + column), result);
      lanes.store(result, d_x + column);
    });
  }
}

void activation_backward(const ActivationBackward& p, int64_t first, int64_t end) {
  const DF d;
  over_columns_compact(end - first, [&](size_t column, auto lanes) {
    const int64_t at = first + static_cast<int64_t>(column);
    const auto activated = activation(d, p.activation, lanes.load(p.gate + at));
    V d_y = lanes.load(p.d_y + at);
    if (p.x != nullptr) {
      const V x = lanes.load(p.x + at);
      lanes.store(hn::Mul(d_y, activated.value), p.d_x + at);
      d_y = hn::Mul(d_y, x);
    }
    lanes.store(hn::Mul(d_y, activated.slope), p.d_gate + at);
  });
}

void embed_backward(const EmbedBackward& p, int64_t first, int64_t end) {
  const auto add = [&](const float* d_y, float* table, int64_t index) {
    if (table == nullptr) return;
    float* const to = table + index * p.width + first;
    over_columns_compact(end - first, [&](size_t column, auto lanes) {
      lanes.store(hn::Add(lanes.load(to + column), lanes.load(d_y + column)), to + column);
    });
  };
  for (int64_t row = 0; row < p.rows; ++row) {
    const float* const d_y = p.d_y + row * p.width + first;
    add(d_y, p.d_tokens, p.tokens[row]);
    add(d_y, p.d_positions, p.first_position + row % p.sequence);
  }
}

// One vector of counters gives four words per lane, for four vectors of columns.
void drop(const DropRows& p, int64_t first, int64_t end) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const size_t lanes = hn::Lanes(du);
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(du)];
  const PhiloxKeys keys(p.dropout.seed);
  const auto multiply0 = hn::Set(du, keys.multiply0), multiply1 = hn::Set(du, keys.multiply1);
  const auto threshold =
      hn::Set(du, static_cast<uint32_t>(rules::dropout_threshold(p.dropout.probability)));
  const V factor = hn::Set(d, 1.0F / (1.0F - p.dropout.probability));
  const auto width = static_cast<size_t>(p.width);
  for (int64_t row = first; row < end; ++row) {
    const auto index = static_cast<uint64_t>(row);
    const int64_t offset = row * p.width;
    for (size_t group = 0; group * 4 < width; group += lanes) {
      hn::Vec<decltype(du)> c[4] = {
          hn::Iota(du, static_cast<uint32_t>(group)), hn::Set(du, static_cast<uint32_t>(index)),
          hn::Set(du, static_cast<uint32_t>(index >> 32U)), hn::Set(du, ~p.dropout.site)};
      philox_rounds(du, keys, 0, multiply0, multiply1, c);
      hn::StoreInterleaved4(c[0], c[1], c[2], c[3], du, words);
      for (size_t v = 0; v < 4 * lanes && group * 4 + v < width; v += lanes) {
        const size_t column = group * 4 + v;
        const size_t rest = width - column;
        const int64_t at = offset + static_cast<int64_t>(column);
        const auto kept = hn::RebindMask(d, hn::Ge(hn::Load(du, words + v), threshold));
        V y = hn::IfThenElseZero(kept, hn::Mul(load_up_to(d, p.x + at, rest), factor));
        if (p.a != nullptr) y = hn::Add(load_up_to(d, p.a + at, rest), y);
        store_up_to(d, y, p.y + at, rest);
      }
    }
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

MULTIHEAD_EXPORT_RANGE(norm_backward_rows, norm_backward, NormBackward)
MULTIHEAD_EXPORT_RANGE(activation_backward_range, activation_backward, ActivationBackward)
MULTIHEAD_EXPORT_RANGE(embed_backward_columns, embed_backward, EmbedBackward)
MULTIHEAD_EXPORT_RANGE(drop_rows, drop, DropRows)

}  // namespace multihead::cpu
#endif  // HWY_ONCE
