// Exponentials, tanh, activations and random words for vectors.
#if defined(MULTIHEAD_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_MATH_INL_H_
#undef MULTIHEAD_CPU_SIMD_MATH_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_MATH_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "hwy/base.h"
#include "hwy/highway.h"
#include "multihead/elementwise.h"
#include "rules/dropout_mask.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {

// External linkage: with one address, the same functions of several files are one in a
// WebAssembly module.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
inline constexpr float kExp2Table[] = {1.8775766733621336e-3F, 8.989340094734271e-3F,
                                       5.582631805001183e-2F,  2.4015361704534777e-1F,
                                       6.931530732000738e-1F,  9.999999250635296e-1F};
#else
// Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits; 127 more
// make those bits the biased exponent of 2^n.
inline constexpr float kExp2Table[] = {
    1.327647197932044e-3F, 9.675541334208834e-3F, 5.550713273542788e-2F, 2.4022119723848628e-1F,
    6.931469670647336e-1F, 1.0000000716546822F,   12582912.0F + 127.0F,  -127.0F};
#endif

inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- 2^x for vectors of floats. ----

inline constexpr float kLog2E = 1.44269504088896340736F;

// Constants of exp2_clamped(), read through a pointer whose value V8 cannot know. V8 would rebuild
// known vector constants at every use, also in a loop; unknown ones are loaded once: gpt2-1k runs 5
// % (relaxed SIMD) to 10 % faster.
using Exp2Table = const float*;

inline Exp2Table exp2_table() {
  Exp2Table table = kExp2Table;
#if HWY_ARCH_WASM
  asm("" : "+r"(table));
#endif
  return table;
}

// Constant `index` of the table as an addend of exp2_polynomial().
template <class D>
HWY_INLINE hn::Vec<D> exp2_addend(D d, Exp2Table HWY_RESTRICT table, size_t index) {
  return hn::Set(d, table[index]);
}
#if HWY_ARCH_ARM_A64 && (HWY_TARGET & HWY_ALL_NEON) != 0 && !HWY_COMPILER_MSVC
// FMLA overwrites its addend, so a constant that stays in a register is copied before each use, and
// the multipliers' units do the copying. Volatile constants are loaded instead, by units that have
// nothing else to do: llvm-mca counts 3.8 cycles instead of 5.0 for the exponentials of a vector on
// Neoverse V2, 7.5 instead of 10.1 on N2.
template <float kValue>
inline const volatile float32x4_t kFourTimes = {kValue, kValue, kValue, kValue};
HWY_INLINE hn::Vec128<float> exp2_addend(DF, Exp2Table, size_t index) {
  switch (index) {
    case 1:
      return hn::Vec128<float>{kFourTimes<kExp2Table[1]>};
    case 2:
      return hn::Vec128<float>{kFourTimes<kExp2Table[2]>};
    case 3:
      return hn::Vec128<float>{kFourTimes<kExp2Table[3]>};
    case 4:
      return hn::Vec128<float>{kFourTimes<kExp2Table[4]>};
    default:
      return hn::Vec128<float>{kFourTimes<kExp2Table[5]>};
  }
}
#endif

// Evaluates the polynomials of kCount vectors step by step. One vector after the other would leave
// half of the units idle, because each polynomial is a chain of dependent operations. See
// kExpsAtOnce.
template <size_t kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp2_polynomial(D d, Exp2Table HWY_RESTRICT table, const V (&fraction)[kCount],
                                V (&poly)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    poly[i] = mul_add(hn::Set(d, table[0]), fraction[i], exp2_addend(d, table, 1));
  }
  for (size_t c = 2; c < 6; ++c) {
    for (size_t i = 0; i < kCount; ++i) {
      poly[i] = mul_add(poly[i], fraction[i], exp2_addend(d, table, c));
    }
  }
}

// True if exp2_clamped() is infinite for every x that is too large for a float. Elsewhere the bits
// of the exponent wrap around to a wrong number, so callers bound x.
inline constexpr bool kExp2Overflows = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;

// 2^x for x < 127, and for any x if kExp2Overflows; 0 for x <= -127 (AVX-512: where 2^x
// underflows); NaN for NaN. Relative error 7.5e-8, from a minimax polynomial of degree 5 on [-1/2,
// 1/2], found by a Remez exchange in exact arithmetic.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_clamped(D d, Exp2Table HWY_RESTRICT table, V x) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  // Polynomial on [0, 1): 2^x = 2^floor(x) * 2^(x - floor(x)), two instructions in addition to the
  // polynomial. 7 cycles for each vector instead of 8.4 (Zen 4); relative error 1.5e-7.
  const V fraction[1] = {minus_floor(x)};
#else
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, table[6]);
  x = at_least(hn::Set(d, table[7]), x);
  const V shifted = hn::Add(x, magic);
  const V fraction[1] = {hn::Sub(x, hn::Sub(shifted, magic))};
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted)));
#endif
  V poly[1];
  exp2_polynomial(d, table, fraction, poly);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return times_exp2_floor(poly[0], x);
#else
  return hn::Mul(poly[0], power);
#endif
}

// ---- Hyperbolic tangent of the score cap. ----

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

// ---- The activations of MLPs, with their derivatives. ----

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

// ---- Random words of rules/dropout_mask.h, with queries in the lanes. ----

struct PhiloxKeys {
  static constexpr size_t kRounds = 10;
  uint32_t multiply0 = 0xD2511F53U, multiply1 = 0xCD9E8D57U;
  uint32_t key0[kRounds], key1[kRounds];

  explicit PhiloxKeys(uint64_t seed) {
    for (size_t round = 0; round < kRounds; ++round) {
      const auto times = static_cast<uint32_t>(round);
      key0[round] = static_cast<uint32_t>(seed) + times * 0x9E3779B9U;
      key1[round] = static_cast<uint32_t>(seed >> 32U) + times * 0xBB67AE85U;
    }
    // V8 would rebuild vectors of known constants at every use.
    hwy::PreventElision(multiply0);
    hwy::PreventElision(multiply1);
  }
};

// Runs rounds first .. kRounds - 1 of rules::philox4x32().
template <class DU, class V = hn::Vec<DU>>
HWY_INLINE void philox_rounds(DU du, const PhiloxKeys& keys, size_t first, V multiply0, V multiply1,
                              V (&c)[4]) {
  for (size_t round = first; round < PhiloxKeys::kRounds; ++round) {
    const V high0 = hn::MulHigh(c[0], multiply0);
    const V high1 = hn::MulHigh(c[2], multiply1);
    const V low0 = hn::Mul(c[0], multiply0);
    const V low1 = hn::Mul(c[2], multiply1);
    c[0] = hn::Xor3(high1, c[1], hn::Set(du, keys.key0[round]));
    c[1] = low1;
    c[2] = hn::Xor3(high0, c[3], hn::Set(du, keys.key1[round]));
    c[3] = low0;
  }
}

// The counter of rules::philox4x32() is (key group, query, head, batch). Only query and head vary
// with the lane. Each product of the first two rounds is therefore the same in all lanes or for all
// key groups, and is computed once; eight rounds remain.
template <class DU>
class DropoutWords {
  using V = hn::Vec<DU>;

 public:
  HWY_INLINE DropoutWords(DU du, const PhiloxKeys& keys, uint32_t batch, V head, V query)
      : du_(du),
        keys_(keys),
        multiply0_(hn::Set(du, keys.multiply0)),
        multiply1_(hn::Set(du, keys.multiply1)),
        batch_(batch),
        first1_(hn::Mul(head, multiply1_)) {
    const V first0 = hn::Xor3(hn::MulHigh(head, multiply1_), query, hn::Set(du, keys.key0[0]));
    second2_ = hn::MulHigh(first0, multiply0_);
    second3_ = hn::Mul(first0, multiply0_);
  }

  // Computes the words of keys 4 * group .. 4 * group + 3.
  HWY_INLINE void set_words(uint32_t group, V (&words)[4]) const {
    const uint64_t product0 = uint64_t{keys_.multiply0} * group;
    const uint32_t first2 = static_cast<uint32_t>(product0 >> 32U) ^ batch_ ^ keys_.key1[0];
    const uint64_t product1 = uint64_t{keys_.multiply1} * first2;
    const auto first3 = static_cast<uint32_t>(product0);
    words[0] =
        hn::Xor(first1_, hn::Set(du_, static_cast<uint32_t>(product1 >> 32U) ^ keys_.key0[1]));
    words[1] = hn::Set(du_, static_cast<uint32_t>(product1));
    words[2] = hn::Xor(second2_, hn::Set(du_, first3 ^ keys_.key1[1]));
    words[3] = second3_;
    philox_rounds(du_, keys_, 2, multiply0_, multiply1_, words);
  }

 private:
  const DU du_;
  const PhiloxKeys& keys_;
  const V multiply0_, multiply1_;
  const uint32_t batch_;
  const V first1_;       // word 1 after the first round
  V second2_, second3_;  // words 2 and 3 after round two, without the part equal in all lanes
};

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_MATH_INL_H_
