// Update steps of AdamW and SGD, and sums of squares.
#include "cpu/elementwise/optimizer.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/elementwise/export_range.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise/optimizer.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

using V = hn::Vec<DF>;

void adamw(const AdamWStep& p, int64_t first, int64_t end) {
  const DF d;
  const V scale = hn::Set(d, p.gradient_scale);
  const V beta1 = hn::Set(d, p.beta1), new1 = hn::Set(d, 1.0F - p.beta1);
  const V beta2 = hn::Set(d, p.beta2), new2 = hn::Set(d, 1.0F - p.beta2);
  const V kept = hn::Set(d, 1.0F - p.learning_rate * p.weight_decay);
  const V rate = hn::Set(d, p.learning_rate / p.mean_correction);
  const V to_deviation = hn::Set(d, 1.0F / std::sqrt(p.variance_correction));
  const V eps = hn::Set(d, p.eps);
  over_columns_compact(end - first, [&](size_t column, auto lanes) {
    const int64_t at = first + static_cast<int64_t>(column);
    const V g = hn::Mul(lanes.load(p.gradient + at), scale);
    const V mean = mul_add(beta1, lanes.load(p.mean + at), hn::Mul(new1, g));
    const V variance = mul_add(beta2, lanes.load(p.variance + at), hn::Mul(new2, hn::Mul(g, g)));
    const V deviation = mul_add(hn::Sqrt(variance), to_deviation, eps);
    const V step = hn::Div(hn::Mul(rate, mean), deviation);
    lanes.store(mean, p.mean + at);
    lanes.store(variance, p.variance + at);
    lanes.store(hn::Sub(hn::Mul(lanes.load(p.parameter + at), kept), step), p.parameter + at);
  });
}

void sgd(const SgdStep& p, int64_t first, int64_t end) {
  const DF d;
  const V scale = hn::Set(d, p.gradient_scale), decay = hn::Set(d, p.weight_decay);
  const V rate = hn::Set(d, p.learning_rate), momentum = hn::Set(d, p.momentum);
  over_columns_compact(end - first, [&](size_t column, auto lanes) {
    const int64_t at = first + static_cast<int64_t>(column);
    const V parameter = lanes.load(p.parameter + at);
    V g = mul_add(decay, parameter, hn::Mul(lanes.load(p.gradient + at), scale));
    if (p.momentum_buffer != nullptr) {
      float* const buffer = p.momentum_buffer + at;
      const V moving = p.first ? g : mul_add(momentum, lanes.load(buffer), g);
      lanes.store(moving, buffer);
      g = p.nesterov ? mul_add(momentum, moving, g) : moving;
    }
    lanes.store(hn::Sub(parameter, hn::Mul(rate, g)), p.parameter + at);
  });
}

double squares(const float* x, int64_t count) {
  const auto numbers = static_cast<size_t>(count);
  double sum = 0;
  size_t i = 0;
#if HWY_HAVE_FLOAT64  // 32-bit ARM has no vectors of doubles
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const size_t lanes = hn::Lanes(d);
  auto even = hn::Zero(d), odd = even;
  for (; i + 2 * lanes <= numbers; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(half, x + i));
    const auto b = hn::PromoteTo(d, hn::LoadU(half, x + i + lanes));
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  sum = hn::ReduceSum(d, hn::Add(even, odd));
#endif
  for (; i < numbers; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum;
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

MULTIHEAD_EXPORT_RANGE(adamw_range, adamw, AdamWStep)
MULTIHEAD_EXPORT_RANGE(sgd_range, sgd, SgdStep)

HWY_EXPORT(squares);
double sum_of_squares(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(squares)(x, count);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
