// The activations of MLPs, with their derivatives.
#if defined(MULTIHEAD_CPU_SIMD_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_ACTIVATION_INL_H_
#undef MULTIHEAD_CPU_SIMD_ACTIVATION_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_ACTIVATION_INL_H_
#endif

#include <cstddef>

#include "cpu/simd/exp2-inl.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"
#include "multihead/elementwise.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// 1 / (1 + e^-x) and 1 / (1 + e^x), computed from e^-|x|. This neither overflows nor cancels.
template <class V>
struct Sigmoid {
  V value, complement;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE Sigmoid<V> sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V e = exp2_clamped(d, exp2_table(), hn::Mul(hn::Abs(x), hn::Set(d, -kLog2E)));
  const auto negative = hn::Lt(x, hn::Zero(d));
  const V sum = hn::Add(one, e);
  return {hn::Div(hn::IfThenElse(negative, e, one), sum),
          hn::Div(hn::IfThenElse(negative, one, e), sum)};
}

// erfc(z) and e^(-z^2) for z >= 0. erfc is e^(-z^2) t P(t) with t = 1 / (1 + 0.47 z). P
// interpolates at the Chebyshev nodes of 0 <= z <= 10, with a relative error of 3.3e-8, or 1e-7 in
// float arithmetic. For larger z the exponential is 0.
template <class V>
struct Erfc {
  V value, exponential;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE Erfc<V> erfc_positive(D d, V z) {
  constexpr float kP[] = {2.651337962e-01F,  2.659853165e-01F, 2.278883883e-01F,  2.206266916e-01F,
                          -4.271174880e-02F, 3.051133006e-01F, -3.601170376e-01F, 1.081272498e-01F,
                          2.333189970e-02F,  -1.337786499e-02F};
  const V one = hn::Set(d, 1.0F);
  const V t = hn::Div(one, mul_add(z, hn::Set(d, 0.47F), one));
  V poly = hn::Set(d, kP[9]);
  for (size_t i = 9; i-- > 0;) poly = mul_add(poly, t, hn::Set(d, kP[i]));
  const V exponential = exp2_clamped(d, exp2_table(), hn::Mul(hn::Mul(z, z), hn::Set(d, -kLog2E)));
  return {hn::Mul(hn::Mul(exponential, t), poly), exponential};
}

// An activation and its derivative. If a caller uses only one of them, the compiler removes the
// other.
template <class V>
struct Activated {
  V value, slope;
};
template <class D, class V = hn::Vec<D>>
HWY_INLINE Activated<V> activation(D d, Activation which, V x) {
  const V zero = hn::Zero(d), one = hn::Set(d, 1.0F);
  const auto negative = hn::Lt(x, zero);
  switch (which) {
    case Activation::kRelu:
      // This order of the arguments keeps a NaN.
      return {hn::IfThenElse(negative, zero, x), hn::IfThenElse(hn::Le(x, zero), zero, one)};
    case Activation::kGelu: {
      // x Phi(x). With tail = x/2 erfc(|x| / sqrt(2)), it is tail for x < 0 and x - tail otherwise.
      const V half = hn::Set(d, 0.5F);
      const auto erfc = erfc_positive(d, hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678118654752F)));
      const V tail = hn::Mul(hn::Mul(x, half), erfc.value);
      // Phi(x) + x e^(-x^2 / 2) / sqrt(2 pi)
      const V small = hn::Mul(half, erfc.value);
      const V phi = hn::IfThenElse(negative, small, hn::Sub(one, small));
      const V density = hn::Mul(erfc.exponential, hn::Set(d, 0.39894228040143268F));
      return {hn::IfThenElse(negative, tail, hn::Sub(x, tail)), mul_add(x, density, phi)};
    }
    case Activation::kGeluTanh: {
      // (1 + tanh(u)) / 2 is the sigmoid of 2 u; here 2 sqrt(2/pi) (x + 0.044715 x^3).
      const V linear = hn::Set(d, 1.5957691216F);
      const V square = hn::Mul(x, x);
      const V cubic = mul_add(square, hn::Set(d, 0.071354816F), linear);
      const auto s = sigmoid(d, hn::Mul(x, cubic));
      // Beyond |x| = 20 the sigmoid is 0 or 1, and an infinite square would give NaN.
      const V bounded = hn::Min(square, hn::Set(d, 400.0F));
      const V inner = mul_add(bounded, hn::Set(d, 3 * 0.071354816F), linear);
      const V bend = hn::Mul(hn::Mul(x, s.complement), inner);
      return {hn::Mul(x, s.value), hn::Mul(s.value, hn::Add(one, bend))};
    }
    case Activation::kSilu:
      break;
  }
  const auto s = sigmoid(d, x);
  return {hn::Mul(x, s.value), hn::Mul(s.value, mul_add(x, s.complement, one))};
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_ACTIVATION_INL_H_
