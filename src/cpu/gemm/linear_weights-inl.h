// Rows of a weight matrix: packed into strips of columns, or multiplied in place.
#if defined(MULTIHEAD_CPU_GEMM_LINEAR_WEIGHTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_GEMM_LINEAR_WEIGHTS_INL_H_
#undef MULTIHEAD_CPU_GEMM_LINEAR_WEIGHTS_INL_H_
#else
#define MULTIHEAD_CPU_GEMM_LINEAR_WEIGHTS_INL_H_
#endif

#include <cstddef>

#include "cpu/simd/columns-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "cpu/simd/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// One row of weights per lane. Lanes without a row repeat the last row.
template <class D>
struct WeightRows {
  const float* row[kSide<D>];

  WeightRows(const FloatRows& rows, size_t given) {
    for (size_t i = 0; i < kSide<D>; ++i) {
      row[i] = rows.data + static_cast<ptrdiff_t>(HWY_MIN(i, given - 1)) * rows.stride;
    }
  }
};

// to[k * stride + i] = rows.row[i][k] for k < depth, and zeros up to whole vectors of k.
template <class D>
HWY_NOINLINE void pack_rows(D d, const WeightRows<D>& rows, size_t depth, float* HWY_RESTRICT to,
                            size_t stride) {
  constexpr size_t kLanes = kSide<D>;
  for (size_t k = 0; k < depth; k += kLanes) {
    Square<D> square;
    for (size_t i = 0; i < kLanes; ++i) {
      square.row[i] = load_up_to(d, rows.row[i] + k, depth - k);
    }
    transpose(d, square);
    for (size_t i = 0; i < kLanes; ++i) hn::Store(square.row[i], d, to + (k + i) * stride);
  }
}

// Computes sums.row[o], the product of x with rows.row[o], lane by lane. Rows are read one after
// the other, without prefetches: the weights of a GPT-2-small step come from memory at 25 GB/s, the
// speed of reading alone. Two rows at a time reached 14 GB/s, eight 20 (in WebAssembly four 13).
template <class D>
HWY_NOINLINE void dot_products_in_order(D d, const float* HWY_RESTRICT x, const WeightRows<D>& rows,
                                        size_t depth, Square<D>& sums) {
  const size_t lanes = hn::Lanes(d);
  const size_t whole = depth / lanes * lanes;
  const FloatReader<float, D> read(d);
  for (size_t o = 0; o < kSide<D>; ++o) {
    auto sum = dot(d, read, x, lanes, rows.row[o], depth);
    if (whole < depth) {
      sum = mul_add(load_up_to(d, x + whole, depth - whole),
                    load_up_to(d, rows.row[o] + whole, depth - whole), sum);
    }
    sums.row[o] = sum;
  }
}

// Computes sums[r].row[first + o], the product of row r of x with weights[o], lane by lane.
template <size_t kRows, size_t kOuts, class D>
HWY_NOINLINE void dot_products(D d, const float* HWY_RESTRICT x, ptrdiff_t x_stride,
                               const float* const* weights, size_t depth,
                               Square<D>* HWY_RESTRICT sums, size_t first) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  const float* row[kOuts];
  for (size_t o = 0; o < kOuts; ++o) row[o] = weights[o];
  V sum[kRows][kOuts];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kOuts; ++o) sum[r][o] = hn::Zero(d);
  }
  size_t k = 0;
  for (; k + lanes <= depth; k += lanes) {
    V w[kOuts];
    for (size_t o = 0; o < kOuts; ++o) w[o] = hn::LoadU(d, row[o] + k);
    for (size_t r = 0; r < kRows; ++r) {
      const V factor = hn::LoadU(d, x + static_cast<ptrdiff_t>(r) * x_stride + k);
      for (size_t o = 0; o < kOuts; ++o) sum[r][o] = mul_add(factor, w[o], sum[r][o]);
    }
  }
  if (k < depth) {
    const size_t rest = depth - k;
    V w[kOuts];
    for (size_t o = 0; o < kOuts; ++o) w[o] = load_up_to(d, row[o] + k, rest);
    for (size_t r = 0; r < kRows; ++r) {
      const V factor = load_up_to(d, x + static_cast<ptrdiff_t>(r) * x_stride + k, rest);
      for (size_t o = 0; o < kOuts; ++o) sum[r][o] = mul_add(factor, w[o], sum[r][o]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t o = 0; o < kOuts; ++o) sums[r].row[first + o] = sum[r][o];
  }
}

// Returns in lane i the sum of the lanes of row i. Each round adds the halves of two rows at once.
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

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_GEMM_LINEAR_WEIGHTS_INL_H_
