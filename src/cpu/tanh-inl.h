// The hyperbolic tangent of the score cap.
#if defined(MULTIHEAD_CPU_TANH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_TANH_INL_H_
#undef MULTIHEAD_CPU_TANH_INL_H_
#else
#define MULTIHEAD_CPU_TANH_INL_H_
#endif

#include <cmath>
#include <cstddef>

#include "cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// score -> cap * tanh(score / cap) as score * P(x^2) / Q(x^2), where x is the score over the cap's
// power of two, which rounds nothing, and the rest of the cap is in the coefficients.
//
// P / Q is tanh(x) / x with the least relative error, 2.1e-8, on [-9.02, 9.02], where tanh is 1
// but for 3e-8; by Lawson's iteration in 40 digits. All coefficients are positive: nothing
// cancels, and results, small ones too, are within 4 units in the last place.
//
// That the compiler cannot know the coefficients is worth 10 of 22 ms on gpt2-1k with relaxed
// SIMD: V8 builds each vector constant anew wherever it is used, in several instructions.
struct ScoreCap {
  static constexpr size_t kTerms = 5;
  float cap, to_x, edge;
  float p[kTerms], q[kTerms];

  explicit ScoreCap(float limit) : cap(limit) {
    constexpr double kP[kTerms] = {9.9999997969585035e-1, 1.3379681512377791e-1,
                                   3.4939840669282124e-3, 2.0582398038272073e-5,
                                   1.3317168264401991e-8};
    constexpr double kQ[kTerms] = {1.0, 4.6712997078287999e-1, 2.5870899436142924e-2,
                                   3.2829988763475879e-4, 7.7613219000424281e-7};
    int exponent = 0;
    const double rest = std::frexp(static_cast<double>(limit), &exponent);
    to_x = std::ldexp(1.0F, -exponent);
    edge = static_cast<float>(9.02 * 9.02 * rest * rest);
    double power = 1.0;
    for (size_t i = 0; i < kTerms; ++i, power /= rest * rest) {
      p[i] = static_cast<float>(kP[i] * power);
      q[i] = static_cast<float>(kQ[i] * power);
    }
  }
};

// Of a NaN something in [-cap, cap].
template <class D, class V = hn::Vec<D>>
HWY_INLINE V cap_score(D d, const ScoreCap& of, V score) {
  const V x = hn::Mul(score, hn::Set(d, of.to_x));
  const V y = hn::Min(hn::Mul(x, x), hn::Set(d, of.edge));
  V p = hn::Set(d, of.p[ScoreCap::kTerms - 1]);
  V q = hn::Set(d, of.q[ScoreCap::kTerms - 1]);
  for (size_t i = ScoreCap::kTerms - 1; i-- > 0;) {
    p = mul_add(p, y, hn::Set(d, of.p[i]));
    q = mul_add(q, y, hn::Set(d, of.q[i]));
  }
  const V cap = hn::Set(d, of.cap);
  return hn::Clamp(hn::Div(hn::Mul(score, p), q), hn::Neg(cap), cap);
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_TANH_INL_H_
