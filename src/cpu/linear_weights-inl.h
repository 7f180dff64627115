// Rows of a weight matrix, of any storage type, as floats: turned into strips of columns, or
// multiplied where they lie.
#if defined(MULTIHEAD_CPU_LINEAR_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_LINEAR_WEIGHTS_INL_H_
#undef MULTIHEAD_CPU_LINEAR_WEIGHTS_INL_H_
#else
#define MULTIHEAD_CPU_LINEAR_WEIGHTS_INL_H_
#endif

#include <cstddef>
#include <type_traits>

#include "cpu/simd-inl.h"
#include "cpu/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class T>
HWY_INLINE hn::Vec<D> load_floats(D d, const T* from) {
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, from);
  } else {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<T, D>(), from));
  }
}

// Zeros from `count` on. The branch is worth it: stores under a mask are microcode on AVX2, where
// 512x64x768 went from 101 to 77 GFLOP/s with nothing but those in front of the product.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_floats_up_to(D d, const T* from, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) return load_floats(d, from);
  if constexpr (std::is_same_v<T, float>) {
    return hn::LoadN(d, from, count);
  } else {
    return hn::PromoteTo(d, hn::LoadN(hn::Rebind<T, D>(), from, count));
  }
}

template <class D>
HWY_INLINE void store_up_to(D d, hn::Vec<D> values, float* to, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) {
    hn::StoreU(values, d, to);
  } else {
    hn::StoreN(values, d, to, count);
  }
}

// One row of a square of weights for each lane; the last row stands for those that are missing.
template <class D, class T>
struct WeightRows {
  const T* row[kSide<D>];

  WeightRows(const T* first, ptrdiff_t stride, size_t given) {
    for (size_t i = 0; i < kSide<D>; ++i) {
      row[i] = first + static_cast<ptrdiff_t>(HWY_MIN(i, given - 1)) * stride;
    }
  }
};

// to[k * stride + i] = rows.row[i][k] for k < depth, and zeros up to whole vectors of k.
template <class D, class T>
HWY_NOINLINE void pack_rows(D d, const WeightRows<D, T>& rows, size_t depth, float* HWY_RESTRICT to,
                            size_t stride) {
  constexpr size_t kLanes = kSide<D>;
  for (size_t k = 0; k < depth; k += kLanes) {
    Square<D> square;
    for (size_t i = 0; i < kLanes; ++i) {
      square.row[i] = load_floats_up_to(d, rows.row[i] + k, depth - k);
    }
    transpose(d, square);
    for (size_t i = 0; i < kLanes; ++i) hn::Store(square.row[i], d, to + (k + i) * stride);
  }
}

// sums[r].row[first + o] = the products of row r of x with weights[o], lane by lane. Nothing is
// prefetched: the processor follows eight rows by itself, and asking for the next ones took
// 1x768x2304 from 76 to 73 GB/s at best.
template <size_t kRows, size_t kOuts, class D, class T>
HWY_NOINLINE void dot_products(D d, const float* HWY_RESTRICT x, ptrdiff_t x_stride,
                               const T* const* weights, size_t depth, Square<D>* HWY_RESTRICT sums,
                               size_t first) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  const T* row[kOuts];
  for (size_t o = 0; o < kOuts; ++o) row[o] = weights[o];
  V sum[kRows][kOuts];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kOuts; ++o) sum[r][o] = hn::Zero(d);
  }
  size_t k = 0;
  for (; k + lanes <= depth; k += lanes) {
    V w[kOuts];
    for (size_t o = 0; o < kOuts; ++o) w[o] = load_floats(d, row[o] + k);
    for (size_t r = 0; r < kRows; ++r) {
      const V factor = load_floats(d, x + static_cast<ptrdiff_t>(r) * x_stride + k);
      for (size_t o = 0; o < kOuts; ++o) sum[r][o] = mul_add(factor, w[o], sum[r][o]);
    }
  }
  if (k < depth) {
    const size_t rest = depth - k;
    V w[kOuts];
    for (size_t o = 0; o < kOuts; ++o) w[o] = load_floats_up_to(d, row[o] + k, rest);
    for (size_t r = 0; r < kRows; ++r) {
      const V factor = load_floats_up_to(d, x + static_cast<ptrdiff_t>(r) * x_stride + k, rest);
      for (size_t o = 0; o < kOuts; ++o) sum[r][o] = mul_add(factor, w[o], sum[r][o]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kOuts; ++o) sums[r].row[first + o] = sum[r][o];
  }
}

// Lane i: the sum of the lanes of row i. Each round adds the halves of two rows at once.
template <class D>
HWY_INLINE hn::Vec<D> sum_of_lanes(D d, Square<D>& square) {
  for (size_t half = kSide<D> / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) {
      square.row[i] = hn::Add(hn::InterleaveWholeLower(d, square.row[i], square.row[i + half]),
                              hn::InterleaveWholeUpper(d, square.row[i], square.row[i + half]));
    }
  }
  return square.row[0];
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_LINEAR_WEIGHTS_INL_H_
