// Hyperbolic tangent of the score cap.
#if defined(MULTIHEAD_CPU_SIMD_TANH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_TANH_INL_H_
#undef MULTIHEAD_CPU_SIMD_TANH_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_TANH_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cpu/simd/exp2-inl.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// score -> cap * tanh(score / cap). The error is at most 3 units in the last place of the cap, and
// 4 units in the last place of a small result.
//
//   |score| < 0.625 cap   score * R(x^2)
//   else                  cap * (1 - t) / (1 + t), t = e^(-2 |score| / cap)
//
// x is the score divided by the cap's power of two, which does not round; the rest of the cap is in
// the coefficients of R. A single quotient of polynomials over the whole range takes a third less
// time, with an error of 6 units.
struct ScoreCap {
  // Relative error 3.929e-9 on [-0.625, 0.625], by Lawson's iteration in 40 digits.
  static constexpr size_t kTerms = 6;
  float cap, to_x, to_log2, small;
  float r[kTerms];

  explicit ScoreCap(float limit) : cap(limit), small(0.625F * limit) {
    constexpr double kR[kTerms] = {0.9999999961160534,   -0.33333260739616376,
                                   0.13331130605129804,  -0.053721248066462911,
                                   0.020591449783143009, -0.0056604187840968008};
    int exponent = 0;
    const double rest = std::frexp(static_cast<double>(limit), &exponent);
    // 2^127 for subnormal caps: a factor of infinity would make NaN of a score of 0.
    to_x = std::ldexp(1.0F, std::min(-exponent, 127));
    to_log2 = static_cast<float>(-2.0 * 1.4426950408889634 / rest);
    double power = 1.0;
    for (size_t i = 0; i < kTerms; ++i, power /= rest * rest) {
      r[i] = static_cast<float>(kR[i] * power);
    }
  }
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE V cap_score(D d, const ScoreCap& of, V score) {
  const V one = hn::Set(d, 1.0F);
  const V x = hn::Mul(score, hn::Set(d, of.to_x));
  const V y = hn::Mul(x, x);
  V r = hn::Set(d, of.r[ScoreCap::kTerms - 1]);
  for (size_t i = ScoreCap::kTerms - 1; i-- > 0;) r = mul_add(r, y, hn::Set(d, of.r[i]));
  const V t = exp2_clamped(d, exp2_table(), hn::Mul(hn::Abs(x), hn::Set(d, of.to_log2)));
  const V large = hn::Div(hn::Mul(hn::Set(d, of.cap), hn::Sub(one, t)), hn::Add(one, t));
  // Comparisons with a NaN are false.
  const auto is_large = hn::Ge(hn::Abs(score), hn::Set(d, of.small));
  return hn::IfThenElse(is_large, hn::CopySign(large, score), hn::Mul(score, r));
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_TANH_INL_H_
