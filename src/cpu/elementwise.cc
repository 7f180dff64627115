// LayerNorm, RMSNorm and activations, a row at a time.
#include "cpu/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/exp2-inl.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using V = hn::Vec<DF>;

// 1 / (1 + e^-x): from e^-|x|, which neither overflows nor cancels.
V sigmoid(DF d, V x) {
  const V e = exp2_clamped(d, exp2_table(), hn::Mul(hn::Abs(x), hn::Set(d, -kLog2E)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, hn::Set(d, 1.0F));
  return hn::Div(numerator, hn::Add(hn::Set(d, 1.0F), e));
}

// erfc(z) for z >= 0, as e^(-z^2) t P(t) with t = 1 / (1 + 0.47 z). P interpolates at Chebyshev's
// nodes of 0 <= z <= 10, relative error 3.3e-8, evaluated in floats 1e-7; beyond, the exponential
// is 0.
V erfc_positive(DF d, V z) {
  constexpr float kP[] = {2.651337962e-01F,  2.659853165e-01F, 2.278883883e-01F,  2.206266916e-01F,
                          -4.271174880e-02F, 3.051133006e-01F, -3.601170376e-01F, 1.081272498e-01F,
                          2.333189970e-02F,  -1.337786499e-02F};
  const V one = hn::Set(d, 1.0F);
  const V t = hn::Div(one, mul_add(z, hn::Set(d, 0.47F), one));
  V poly = hn::Set(d, kP[9]);
  for (size_t i = 9; i-- > 0;) poly = mul_add(poly, t, hn::Set(d, kP[i]));
  const V exponential = exp2_clamped(d, exp2_table(), hn::Mul(hn::Mul(z, z), hn::Set(d, -kLog2E)));
  return hn::Mul(hn::Mul(exponential, t), poly);
}

// x Phi(x); the tail x/2 erfc(|x| / sqrt(2)) is what a negative x gives and a positive one lacks.
V gelu(DF d, V x) {
  const V z = hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678118654752F));
  const V tail = hn::Mul(hn::Mul(x, hn::Set(d, 0.5F)), erfc_positive(d, z));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(x, tail));
}

V activation(DF d, Activation which, V x) {
  switch (which) {
    case Activation::kRelu:
      // This argument order keeps a NaN.
      return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
    case Activation::kGelu:
      return gelu(d, x);
    case Activation::kGeluTanh: {
      // (1 + tanh(u)) / 2 is the sigmoid of 2 u; here 2 sqrt(2/pi) (x + 0.044715 x^3).
      const V cubic = mul_add(hn::Mul(x, x), hn::Set(d, 0.071354816F), hn::Set(d, 1.5957691216F));
      return hn::Mul(x, sigmoid(d, hn::Mul(x, cubic)));
    }
    case Activation::kSilu:
      break;
  }
  return hn::Mul(x, sigmoid(d, x));
}

// Calls each(column, lanes) over the columns of a row; the last may have fewer lanes.
template <class Each>
void over_columns(int64_t width, Each&& each) {
  const auto columns = static_cast<size_t>(width);
  const size_t lanes = hn::Lanes(DF());
  for (size_t column = 0; column < columns; column += lanes) {
    each(column, std::min(lanes, columns - column));
  }
}

// Sum of value(lanes of the row), of which those beyond the row are 0.
template <class Value>
float sum_of(int64_t width, Value&& value) {
  const DF d;
  V sum = hn::Zero(d);
  over_columns(width, [&](size_t column, size_t lanes) {
    const V terms = value(column, lanes);
    sum = hn::Add(sum, hn::IfThenElse(hn::FirstN(d, lanes), terms, hn::Zero(d)));
  });
  return hn::ReduceSum(d, sum);
}

void normalise(const NormParams& p, int64_t first, int64_t end) {
  const DF d;
  const auto width = static_cast<float>(p.width);
  for (int64_t row = first; row < end; ++row) {
    const float* const x = p.x + row * p.x_stride;
    float* const y = p.y + row * p.y_stride;
    const auto load = [&](size_t column, size_t lanes) { return hn::LoadN(d, x + column, lanes); };
    // Twice over the row, which is in the cache: the difference of large squares would cancel.
    const V mean = hn::Set(d, p.centred ? sum_of(p.width, load) / width : 0.0F);
    const float squares = sum_of(p.width, [&](size_t column, size_t lanes) {
      const V centred = hn::Sub(load(column, lanes), mean);
      return hn::Mul(centred, centred);
    });
    const V factor = hn::Set(d, 1.0F / std::sqrt(squares / width + p.epsilon));
    over_columns(p.width, [&](size_t column, size_t lanes) {
      V value = hn::Mul(hn::Sub(load(column, lanes), mean), factor);
      if (p.weight != nullptr) value = hn::Mul(value, hn::LoadN(d, p.weight + column, lanes));
      if (p.bias != nullptr) value = hn::Add(value, hn::LoadN(d, p.bias + column, lanes));
      hn::StoreN(value, d, y + column, lanes);
    });
  }
}

void activate(const ActivationParams& p, int64_t first, int64_t end) {
  const DF d;
  for (int64_t row = first; row < end; ++row) {
    const float* const gate = p.gate + row * p.gate_stride;
    const float* const x = p.x == nullptr ? nullptr : p.x + row * p.x_stride;
    float* const y = p.y + row * p.y_stride;
    over_columns(p.width, [&](size_t column, size_t lanes) {
      V value = activation(d, p.activation, hn::LoadN(d, gate + column, lanes));
      if (x != nullptr) value = hn::Mul(value, hn::LoadN(d, x + column, lanes));
      hn::StoreN(value, d, y + column, lanes);
    });
  }
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(normalise);
HWY_EXPORT(activate);

void norm_rows(const NormParams& params, int64_t first, int64_t end) {
  HWY_DYNAMIC_DISPATCH(normalise)(params, first, end);
}

void activation_rows(const ActivationParams& params, int64_t first, int64_t end) {
  HWY_DYNAMIC_DISPATCH(activate)(params, first, end);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
