// Online softmax over a tile of transposed scores, queries in the lanes.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (arXiv:1805.02867): each lane
// keeps a reference score and the sum of exp(score - reference) so far. When the reference rises,
// the sum is scaled down.
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_SOFTMAX_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_SOFTMAX_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_SOFTMAX_INL_H_
#endif

#include <cstddef>
#include <type_traits>

#include "cpu/simd/exp2-inl.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Limit of weights relative to a reference below the maximum: no weight exceeds 2^kMostExponent, so
// sums cannot overflow.
inline constexpr float kMostExponent = 8.0F;

// The constants of a softmax over factor * score.
struct SoftmaxFactor {
  float to_log2;  // factor * log2(e)
  float lowest;   // score - reference for a weight of 2^-127
  float slack;    // score - reference for a weight of 2^kMostExponent

  explicit SoftmaxFactor(float factor)
      : to_log2(factor * kLog2E), lowest(-127.0F / to_log2), slack(kMostExponent / to_log2) {}
};

// SoftmaxFactor in vectors.
template <class D>
struct ToLog2 {
  hn::Vec<D> factor, lowest;

  ToLog2(D d, const SoftmaxFactor& of)
      : factor(hn::Set(d, of.to_log2)), lowest(hn::Set(d, of.lowest)) {}
};

// Replaces x by exp(factor * (x - reference)). Folding the factor into Q would save an instruction,
// but its rounding would affect all products of a score in the same way (an error of 1e-5 in the
// output for inputs of +-1 and a scale of 1).
template <size_t kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp_of_differences(D d, Exp2Table HWY_RESTRICT table, V (&x)[kCount], V reference,
                                   const ToLog2<D>& to_log2) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  for (size_t i = 0; i < kCount; ++i) {
    x[i] = exp2_clamped(d, table, hn::Mul(hn::Sub(x[i], reference), to_log2.factor));
  }
#else
  // Inlines exp2_clamped() with the factor inside its multiply-adds.
  V fraction[kCount], power[kCount], poly[kCount];
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, table[6]);
  for (size_t i = 0; i < kCount; ++i) x[i] = at_least(to_log2.lowest, hn::Sub(x[i], reference));
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
HWY_INLINE V exp_of_difference(D d, Exp2Table HWY_RESTRICT table, V score, V reference,
                               const ToLog2<D>& to_log2) {
  V x[1] = {score};
  exp_of_differences(d, table, x, reference, to_log2);
  return x[0];
}

// Replaces a reference of -inf by 0: a lane without visible keys so far would compute -inf -
// (-inf), which is NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V finite_reference(D d, V reference) {
  return hn::IfThenElse(hn::Eq(reference, hn::Set(d, kNegInf)), hn::Zero(d), reference);
}

// Raises row_max[lane] to the largest score of the lane.
template <class D>
HWY_NOINLINE void raise_row_max(D d, const float* HWY_RESTRICT scores, size_t stride, size_t keys,
                                float* HWY_RESTRICT row_max) {
  using V = hn::Vec<D>;
  V max0 = hn::LoadU(d, row_max);
  V max1 = max0;
  size_t key = 0;
  for (; key + 2 <= keys; key += 2) {
    max0 = hn::Max(hn::LoadU(d, scores + key * stride), max0);
    max1 = hn::Max(hn::LoadU(d, scores + (key + 1) * stride), max1);
  }
  if (key < keys) max0 = hn::Max(hn::LoadU(d, scores + key * stride), max0);
  hn::StoreU(hn::Max(max0, max1), d, row_max);
}

// Turns the scores of one vector of lanes (`keys` rows, `stride` floats apart) into weights
// exp(factor * (score - subtract)) and returns their sum. Even and odd keys are summed separately
// for every kExpsAtOnce, so keys of weight 0 at the end do not change a bit of the sum.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_and_sum(D d, float* HWY_RESTRICT scores, size_t stride, size_t keys, V subtract,
                         const ToLog2<D>& to_log2, Exp2Table HWY_RESTRICT table) {
  V sum[2] = {hn::Zero(d), hn::Zero(d)};
  size_t key = 0;
  const auto take = [&](auto count) HWY_ATTR {
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
  take(std::integral_constant<size_t, TileSize::kExpsAtOnce>());
  if constexpr (TileSize::kExpsAtOnce > 2) take(std::integral_constant<size_t, 2>());
  take(std::integral_constant<size_t, 1>());
  return hn::Add(sum[0], sum[1]);
}

// One step of the online softmax for one vector of lanes (`keys` rows, `stride` floats apart).
// Scores become weights exp(factor * (score - reference)), which are added to row_sum. The
// reference rises to row_max only if a weight would otherwise exceed 2^kMostExponent, which is rare
// after the first keys. `correction` receives the rescale factor of earlier sums; returns true if
// it differs from 1 in any lane.
template <class D>
HWY_NOINLINE bool online_softmax(D d, float* HWY_RESTRICT scores, size_t stride, size_t keys,
                                 const SoftmaxFactor& factor, const float* HWY_RESTRICT row_max,
                                 float* HWY_RESTRICT reference, float* HWY_RESTRICT row_sum,
                                 float* HWY_RESTRICT correction) {
  using V = hn::Vec<D>;
  const ToLog2<D> to_log2(d, factor);
  const V old_reference = hn::LoadU(d, reference);
  const V highest = hn::LoadU(d, row_max);
  const V enough = hn::Add(old_reference, hn::Set(d, factor.slack));
  const V new_reference = hn::IfThenElse(hn::Gt(highest, enough), highest, old_reference);
  const V subtract = finite_reference(d, new_reference);
  const Exp2Table HWY_RESTRICT table = exp2_table();

  const V total = exp_and_sum(d, scores, stride, keys, subtract, to_log2, table);
  const auto same = hn::Eq(old_reference, new_reference);
  if (HWY_LIKELY(hn::AllTrue(d, same))) {
    hn::StoreU(hn::Add(hn::LoadU(d, row_sum), total), d, row_sum);
    hn::StoreU(hn::Set(d, 1.0F), d, correction);
    return false;
  }
  // Lanes whose reference did not change must keep their bits, but the polynomial gives 1 + 1e-7 at
  // 0.
  const V shrunk = hn::IfThenElse(same, hn::Set(d, 1.0F),
                                  exp_of_difference(d, table, old_reference, subtract, to_log2));
  hn::StoreU(new_reference, d, reference);
  hn::StoreU(mul_add(hn::LoadU(d, row_sum), shrunk, total), d, row_sum);
  hn::StoreU(shrunk, d, correction);
  return true;
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_SOFTMAX_INL_H_
