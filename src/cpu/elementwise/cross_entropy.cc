// Cross-entropy of softmax and its gradient, in three passes over a row of logits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/elementwise/gradients.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/cross_entropy.cc"
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

// loss = log(sum over j of exp(x_j)) - x_target, computed relative to the largest logit, and
// d_x_j = d_scale (exp(x_j) / sum of exp - (j == target)).
CrossEntropyResult cross_entropy(const CrossEntropy& p, int64_t first, int64_t end) {
  const DF d;
  CrossEntropyResult result{};
  for (int64_t row = first; row < end; ++row) {
    const float* const x = p.logits + row * p.stride;
    float* const d_x = p.d_logits == nullptr ? nullptr : p.d_logits + row * p.d_stride;
    const int32_t target = p.targets[row];
    if (target < 0) {
      if (d_x != nullptr) std::fill_n(d_x, p.classes, 0.0F);
      continue;
    }
    V largest = hn::Set(d, kNegInf), zeros = hn::Zero(d);
    over_columns_compact(p.classes, [&](size_t column, auto lanes) {
      const V logits = lanes.load(x + column);
      largest = hn::Max(largest, lanes.or_else(logits, kNegInf));
      zeros = hn::Add(zeros, hn::Sub(logits, logits));  // NaN if any logit is infinite or NaN
    });
    const float top = hn::ReduceMax(d, largest);
    const float target_logit = x[target];
    ++result.counted;
    if (target_logit == top && std::find(x, x + target, top) == x + target) ++result.correct;

    const V reference = hn::Set(d, top);
    V sum = hn::Zero(d);
    over_columns_compact(p.classes, [&](size_t column, auto lanes) {
      const V exponent = hn::Mul(hn::Sub(lanes.load(x + column), reference), hn::Set(d, kLog2E));
      const V weight = lanes.or_else(exp2_clamped(d, exp2_table(), exponent), 0.0F);
      sum = hn::Add(sum, weight);
      if (d_x != nullptr) lanes.store(weight, d_x + column);
    });
    const float total = hn::ReduceSum(d, sum);
    result.loss_sum += std::log(static_cast<double>(total)) + static_cast<double>(top) -
                       static_cast<double>(target_logit) +
                       static_cast<double>(hn::ReduceSum(d, zeros));
    if (d_x == nullptr) continue;
    const V factor = hn::Set(d, p.d_scale / total);
    over_columns_compact(p.classes, [&](size_t column, auto lanes) {
      lanes.store(hn::Mul(lanes.load(d_x + column), factor), d_x + column);
    });
    d_x[target] -= p.d_scale;
  }
  return result;
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(cross_entropy);

CrossEntropyResult cross_entropy_rows(const CrossEntropy& call, int64_t first, int64_t end) {
  return HWY_DYNAMIC_DISPATCH(cross_entropy)(call, first, end);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
