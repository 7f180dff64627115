// The hyperbolic tangent of the score cap.
#if defined(MULTIHEAD_CPU_TANH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_TANH_INL_H_
#undef MULTIHEAD_CPU_TANH_INL_H_
#else
#define MULTIHEAD_CPU_TANH_INL_H_
#endif

#include <cstddef>

#include "cpu/simd-inl.h"
#include "hwy/base.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// x P(x^2) / Q(x^2), of the least relative error, 2.1e-8, on [-9.02, 9.02], where tanh is 1 but
// for 3e-8; by Lawson's iteration in 40 digits. All coefficients are positive, so rounding adds
// no more than a few units in the last place, of small results too.
struct TanhCoefficients {
  float edge = 9.02F;
  float p[5] = {9.9999997969585035e-1F, 1.3379681512377791e-1F, 3.4939840669282124e-3F,
                2.0582398038272073e-5F, 1.3317168264401991e-8F};
  float q[5] = {1.0F, 4.6712997078287999e-1F, 2.5870899436142924e-2F, 3.2829988763475879e-4F,
                7.7613219000424281e-7F};
};

// V8 builds each vector constant anew wherever it is used, six instructions for one, but loads
// those that the compiler does not know: with relaxed SIMD the cap cost 22 ms on gpt2-1k as
// constants, and costs 12 now.
inline const TanhCoefficients* tanh_coefficients() {
  static constexpr TanhCoefficients kCoefficients;
  const TanhCoefficients* unknown = &kCoefficients;
  hwy::PreventElision(unknown);
  return unknown;
}

// Of a NaN something in [-1, 1].
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, const TanhCoefficients* c, V x) {
  const V edge = hn::Set(d, c->edge);
  x = hn::Clamp(x, hn::Neg(edge), edge);
  const V y = hn::Mul(x, x);
  V p = hn::Set(d, c->p[4]);
  V q = hn::Set(d, c->q[4]);
  for (size_t i = 4; i-- > 0;) {
    p = mul_add(p, y, hn::Set(d, c->p[i]));
    q = mul_add(q, y, hn::Set(d, c->q[i]));
  }
  const V one = hn::Set(d, c->q[0]);
  return hn::Clamp(hn::Div(hn::Mul(x, p), q), hn::Neg(one), one);
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_TANH_INL_H_
