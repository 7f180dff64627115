// Online softmax over a tile of transposed scores, queries in the lanes.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867):
// each lane keeps the maximum m and the sum l of its scores so far; when m rises, what was
// summed before is scaled down.
#if defined(MULTIHEAD_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SOFTMAX_INL_H_
#undef MULTIHEAD_CPU_SOFTMAX_INL_H_
#else
#define MULTIHEAD_CPU_SOFTMAX_INL_H_
#endif

#include <cstddef>
#include <limits>
#include <type_traits>

#include "cpu/simd-inl.h"
#include "cpu/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr float kNegInf = -std::numeric_limits<float>::infinity();
inline constexpr float kLog2E = 1.44269504088896340736F;

// Constants of exp2_clamped(). V8 builds a vector constant anew wherever it is used, also in
// a loop: one that it cannot know is loaded once, and gpt2-1k runs 5 % (relaxed SIMD) to 10 %
// faster.
using Exp2Table = const float*;

inline Exp2Table exp2_table() {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  static constexpr float kTable[] = {1.8775766733621336e-3F, 8.989340094734271e-3F,
                                     5.582631805001183e-2F,  2.4015361704534777e-1F,
                                     6.931530732000738e-1F,  9.999999250635296e-1F};
#else
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits; 127 more
  // make those bits the biased exponent of 2^n.
  static constexpr float kTable[] = {
      1.327647197932044e-3F, 9.675541334208834e-3F, 5.550713273542788e-2F, 2.4022119723848628e-1F,
      6.931469670647336e-1F, 1.0000000716546822F,   12582912.0F + 127.0F,  -127.0F};
#endif
  Exp2Table table = kTable;
#if HWY_ARCH_WASM
  asm("" : "+r"(table));
#endif
  return table;
}

// Of kCount vectors at once, step by step: a chain of 12 operations, each waiting for the one
// before, leaves half of the units idle where one vector follows the other, see kExpsAtOnce.
template <size_t kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp2_polynomial(D d, Exp2Table HWY_RESTRICT table, const V (&fraction)[kCount],
                                V (&poly)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    poly[i] = mul_add(hn::Set(d, table[0]), fraction[i], hn::Set(d, table[1]));
  }
  for (size_t c = 2; c < 6; ++c) {
    for (size_t i = 0; i < kCount; ++i) {
      poly[i] = mul_add(poly[i], fraction[i], hn::Set(d, table[c]));
    }
  }
}

// 2^x for x < 127; 0 for x <= -127 (AVX-512: where it underflows), NaN for NaN. Relative error
// 7.5e-8: minimax polynomial of degree 5 on [-1/2, 1/2], found by a Remez exchange in exact
// arithmetic.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_clamped(D d, Exp2Table HWY_RESTRICT table, V x) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  // The same polynomial moved to [0, 1): 2^x = 2^floor(x) * 2^(x - floor(x)) in two
  // instructions beside it. 7 cycles a vector instead of 8.4 (Zen 4), 1.5e-7.
  const V fraction[1] = {minus_floor(x)};
#else
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, table[6]);
  // This argument order keeps a NaN.
  x = hn::Max(hn::Set(d, table[7]), x);
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

// Weights relative to anything but the maximum stay below 2^this: no sum overflows for it.
inline constexpr float kMostExponent = 8.0F;

// Of a softmax over factor * score.
struct SoftmaxFactor {
  float to_log2;  // factor * log2(e)
  float lowest;   // difference of scores whose weight is 2^-127
  float slack;    // difference of scores whose weight is 2^kMostExponent

  explicit SoftmaxFactor(float factor)
      : to_log2(factor * kLog2E), lowest(-127.0F / to_log2), slack(kMostExponent / to_log2) {}
};

// The same, as vectors.
template <class D>
struct ToLog2 {
  hn::Vec<D> factor, lowest;

  ToLog2(D d, const SoftmaxFactor& of)
      : factor(hn::Set(d, of.to_log2)), lowest(hn::Set(d, of.lowest)) {}
};

// x becomes exp(factor * (x - maximum)). The difference is taken first: folding the factor into Q
// would save an instruction, and cost a rounding that all products of a score share (1e-5 in the
// output for inputs of +-1 and a scale of 1).
template <size_t kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp_of_differences(D d, Exp2Table HWY_RESTRICT table, V (&x)[kCount], V maximum,
                                   const ToLog2<D>& to_log2) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  for (size_t i = 0; i < kCount; ++i) {
    x[i] = exp2_clamped(d, table, hn::Mul(hn::Sub(x[i], maximum), to_log2.factor));
  }
#else
  // As exp2_clamped(), the products with the factor inside of what follows.
  V fraction[kCount], power[kCount], poly[kCount];
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, table[6]);
  for (size_t i = 0; i < kCount; ++i) x[i] = hn::Max(to_log2.lowest, hn::Sub(x[i], maximum));
  for (size_t i = 0; i < kCount; ++i) power[i] = mul_add(x[i], to_log2.factor, magic);
  for (size_t i = 0; i < kCount; ++i) {
    fraction[i] = mul_add(x[i], to_log2.factor, hn::Sub(magic, power[i]));
  }
  for (size_t i = 0; i < kCount; ++i) {
    power[i] = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, power[i])));
  }
  exp2_polynomial(d, table, fraction, poly);
  for (size_t i = 0; i < kCount; ++i) x[i] = hn::Mul(poly[i], power[i]);
#endif
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of_difference(D d, Exp2Table HWY_RESTRICT table, V score, V maximum,
                               const ToLog2<D>& to_log2) {
  V x[1] = {score};
  exp_of_differences(d, table, x, maximum, to_log2);
  return x[0];
}

// -inf - (-inf) is NaN: a lane that has seen no key subtracts 0 instead.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V finite_maximum(D d, V maximum) {
  return hn::IfThenElse(hn::Eq(maximum, hn::Set(d, kNegInf)), hn::Zero(d), maximum);
}

// Raises top[lane] to the largest score of the lane.
template <class D>
HWY_NOINLINE void raise_top(D d, const float* HWY_RESTRICT scores, size_t stride, size_t keys,
                            float* HWY_RESTRICT top) {
  using V = hn::Vec<D>;
  V max0 = hn::LoadU(d, top);
  V max1 = max0;
  size_t key = 0;
  for (; key + 2 <= keys; key += 2) {
    max0 = hn::Max(hn::LoadU(d, scores + key * stride), max0);
    max1 = hn::Max(hn::LoadU(d, scores + (key + 1) * stride), max1);
  }
  if (key < keys) max0 = hn::Max(hn::LoadU(d, scores + key * stride), max0);
  hn::StoreU(hn::Max(max0, max1), d, top);
}

// One vector of lanes, `keys` rows of `stride` floats: scores become weights exp(factor * (score -
// subtract)), whose sum is returned: that of the even keys and that of the odd ones, so that keys
// without weight behind them change no bit of it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V weigh_lanes(D d, float* HWY_RESTRICT scores, size_t stride, size_t keys, V subtract,
                         const ToLog2<D>& to_log2, Exp2Table HWY_RESTRICT table) {
  V sum[2] = {hn::Zero(d), hn::Zero(d)};
  size_t key = 0;
  const auto weigh = [&](auto count) HWY_ATTR {
    constexpr size_t kCount = decltype(count)::value;
    for (; key + kCount <= keys; key += kCount) {
      float* row = scores + key * stride;
      V weight[kCount];
      for (size_t i = 0; i < kCount; ++i) weight[i] = hn::LoadU(d, row + i * stride);
      exp_of_differences(d, table, weight, subtract, to_log2);
      for (size_t i = 0; i < kCount; ++i) hn::StoreU(weight[i], d, row + i * stride);
      for (size_t i = 0; i < kCount; ++i) sum[i % 2] = hn::Add(sum[i % 2], weight[i]);
    }
  };
  static_assert(TileSize::kExpsAtOnce % 2 == 0);
  weigh(std::integral_constant<size_t, TileSize::kExpsAtOnce>());
  if constexpr (TileSize::kExpsAtOnce > 2) weigh(std::integral_constant<size_t, 2>());
  weigh(std::integral_constant<size_t, 1>());
  return hn::Add(sum[0], sum[1]);
}

// One vector of lanes, `keys` rows of `stride` floats: scores become weights exp(factor * (score -
// m)), m and l of the lanes are brought up to date. m rises to top where a weight might exceed
// 2^kMostExponent otherwise, which is nearly never after the first keys. `correction` receives the
// factor on what was summed before; returns whether any of them is not 1.
template <class D>
HWY_NOINLINE bool softmax_lanes(D d, float* HWY_RESTRICT scores, size_t stride, size_t keys,
                                const SoftmaxFactor& factor, const float* HWY_RESTRICT top,
                                float* HWY_RESTRICT m, float* HWY_RESTRICT l,
                                float* HWY_RESTRICT correction) {
  using V = hn::Vec<D>;
  const ToLog2<D> to_log2(d, factor);
  const V old_max = hn::LoadU(d, m);
  const V highest = hn::LoadU(d, top);
  const V enough = hn::Add(old_max, hn::Set(d, factor.slack));
  const V new_max = hn::IfThenElse(hn::Gt(highest, enough), highest, old_max);
  const V subtract = finite_maximum(d, new_max);
  const Exp2Table HWY_RESTRICT table = exp2_table();

  const V total = weigh_lanes(d, scores, stride, keys, subtract, to_log2, table);
  const auto same = hn::Eq(old_max, new_max);
  if (HWY_LIKELY(hn::AllTrue(d, same))) {
    hn::StoreU(hn::Add(hn::LoadU(d, l), total), d, l);
    hn::StoreU(hn::Set(d, 1.0F), d, correction);
    return false;
  }
  // The polynomial gives 1 + 1e-7 for 0: a lane whose maximum stayed keeps its bits.
  const V shrunk = hn::IfThenElse(same, hn::Set(d, 1.0F),
                                  exp_of_difference(d, table, old_max, subtract, to_log2));
  hn::StoreU(new_max, d, m);
  hn::StoreU(mul_add(hn::LoadU(d, l), shrunk, total), d, l);
  hn::StoreU(shrunk, d, correction);
  return true;
}

// One vector of lanes: weights of keys 2i and 2i + 1 become the bits of two bf16 in row i, the
// first in the lower half; rounded to nearest, ties away from zero. A missing last one is 0.
template <class D>
HWY_NOINLINE void pair_weights(D d, float* HWY_RESTRICT scores, size_t stride, size_t keys) {
  const hn::RebindToUnsigned<D> du;
  const auto half = hn::Set(du, 0x8000U);
  const auto upper = hn::Set(du, 0xFFFF0000U);
  for (size_t key = 0; key < keys; key += 2) {
    const float* from = scores + key * stride;
    const auto low = hn::Add(hn::BitCast(du, hn::LoadU(d, from)), half);
    auto pair = hn::ShiftRight<16>(low);
    if (key + 1 < keys) {
      const auto high = hn::Add(hn::BitCast(du, hn::LoadU(d, from + stride)), half);
      pair = hn::Or(pair, hn::And(high, upper));
    }
    hn::StoreU(hn::BitCast(d, pair), d, scores + key / 2 * stride);
  }
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SOFTMAX_INL_H_
