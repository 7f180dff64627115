// Row by row: LayerNorm, RMSNorm, activations, sums, embeddings, and copies, scaling and averages
// of heads.
#include "cpu/elementwise/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/elementwise/export_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/elementwise.cc"
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

void normalize(const NormParams& p, int64_t first, int64_t end) {
  const DF d;
  const auto width = static_cast<float>(p.width);
  for (int64_t row = first; row < end; ++row) {
    const float* const x = p.x + row * p.x_stride;
    float* const y = p.y + row * p.y_stride;
    const auto load = [&](size_t column, auto lanes) { return lanes.load(x + column); };
    // Computes the variance from differences to the mean, with a second pass over the cached row:
    // mean(x^2) - mean(x)^2 would cancel.
    const V mean = hn::Set(d, p.centered ? sum_of(p.width, load) / width : 0.0F);
    const float squares = sum_of(p.width, [&](size_t column, auto lanes) {
      const V centered = hn::Sub(lanes.load(x + column), mean);
      return hn::Mul(centered, centered);
    });
    const V factor = hn::Set(d, 1.0F / std::sqrt(squares / width + p.eps));
    over_columns(p.width, [&](size_t column, auto lanes) {
      V value = hn::Mul(hn::Sub(lanes.load(x + column), mean), factor);
      if (p.weight != nullptr) value = hn::Mul(value, lanes.load(p.weight + column));
      if (p.bias != nullptr) value = hn::Add(value, lanes.load(p.bias + column));
      lanes.store(value, y + column);
    });
  }
}

void activate(const ActivationParams& p, int64_t first, int64_t end) {
  const DF d;
  for (int64_t row = first; row < end; ++row) {
    const float* const gate = p.gate + row * p.gate_stride;
    const float* const x = p.x == nullptr ? nullptr : p.x + row * p.x_stride;
    float* const y = p.y + row * p.y_stride;
    over_columns(p.width, [&](size_t column, auto lanes) {
      V value = activation(d, p.activation, lanes.load(gate + column)).value;
      if (x != nullptr) value = hn::Mul(value, lanes.load(x + column));
      lanes.store(value, y + column);
    });
  }
}

void sum(const float* a, const float* b, float* y, int64_t count) {
  over_columns(count, [&](size_t column, auto lanes) {
    lanes.store(hn::Add(lanes.load(a + column), lanes.load(b + column)), y + column);
  });
}

void embed(const EmbedParams& p, int64_t first, int64_t end) {
  for (int64_t row = first; row < end; ++row) {
    const float* const token = p.embeddings + p.tokens[row] * p.width;
    float* const y = p.y + row * p.width;
    if (p.positions == nullptr) {
      std::copy_n(token, p.width, y);
    } else {
      sum(token, p.positions + (p.first_position + row % p.sequence) * p.width, y, p.width);
    }
  }
}

void scale_heads(const ScaleHeadsParams& p, int64_t first, int64_t end) {
  const DF d;
  for (int64_t row = first; row < end; ++row) {
    float* const token = p.x + row / p.tokens * p.stride[0] + row % p.tokens * p.stride[2];
    for (int64_t h = 0; h < p.heads; ++h) {
      float* const x = token + h * p.stride[1];
      const float factor = p.factors[h];
      if (factor == 0.0F) {
        std::fill_n(x, p.width, 0.0F);
        continue;
      }
      over_columns(p.width, [&](size_t column, auto lanes) {
        lanes.store(hn::Mul(lanes.load(x + column), hn::Set(d, factor)), x + column);
      });
    }
  }
}

void mean_heads(const MeanHeadsParams& p, int64_t first, int64_t end) {
  const DF d;
  const V factor = hn::Set(d, static_cast<float>(1.0 / static_cast<double>(p.heads)));
  for (int64_t row = first; row < end; ++row) {
    const int64_t b = row / p.tokens, n = row % p.tokens;
    const float* const x = p.x + b * p.x_stride[0] + n * p.x_stride[2];
    float* const y = p.y + b * p.y_stride[0] + n * p.y_stride[1];
    over_columns(p.width, [&](size_t column, auto lanes) {
      V sum = lanes.load(x + column);
      for (int64_t h = 1; h < p.heads; ++h) {
        sum = hn::Add(sum, lanes.load(x + h * p.x_stride[1] + column));
      }
      lanes.store(hn::Mul(sum, factor), y + column);
    });
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

MULTIHEAD_EXPORT_RANGE(norm_rows, normalize, NormParams)
MULTIHEAD_EXPORT_RANGE(activation_rows, activate, ActivationParams)
MULTIHEAD_EXPORT_RANGE(embed_rows, embed, EmbedParams)
MULTIHEAD_EXPORT_RANGE(scale_heads_rows, scale_heads, ScaleHeadsParams)
MULTIHEAD_EXPORT_RANGE(mean_heads_rows, mean_heads, MeanHeadsParams)

HWY_EXPORT(sum);
void add(const float* a, const float* b, float* y, int64_t count) {
  HWY_DYNAMIC_DISPATCH(sum)(a, b, y, count);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
