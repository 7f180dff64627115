// Rows to columns.
#if defined(MULTIHEAD_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_TRANSPOSE_INL_H_
#undef MULTIHEAD_CPU_TRANSPOSE_INL_H_
#else
#define MULTIHEAD_CPU_TRANSPOSE_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// to[c * stride + r] = factor * rows[r][c] for r < Lanes(d), c < width.
template <class D>
HWY_NOINLINE void transpose_rows(D d, const float* const* rows, size_t width, float factor,
                                 float* HWY_RESTRICT to, size_t stride) {
  const size_t lanes = hn::Lanes(d);
  size_t c = 0;
#if !HWY_HAVE_SCALABLE
  // log2(lanes) perfect shuffles of the block's rows transpose it.
  constexpr size_t kLanes = hn::MaxLanes(D());
  const auto by = hn::Set(d, factor);
  for (; c + kLanes <= width; c += kLanes) {
    hn::Vec<D> block[kLanes];
    for (size_t r = 0; r < kLanes; ++r) block[r] = hn::Mul(hn::LoadU(d, rows[r] + c), by);
    for (size_t half = 1; half < kLanes; half *= 2) {
      hn::Vec<D> shuffled[kLanes];
      for (size_t r = 0; r < kLanes / 2; ++r) {
        shuffled[2 * r] = hn::InterleaveWholeLower(d, block[r], block[r + kLanes / 2]);
        shuffled[2 * r + 1] = hn::InterleaveWholeUpper(d, block[r], block[r + kLanes / 2]);
      }
      for (size_t r = 0; r < kLanes; ++r) block[r] = shuffled[r];
    }
    for (size_t r = 0; r < kLanes; ++r) hn::StoreU(block[r], d, to + (c + r) * stride);
  }
#endif
  for (; c < width; ++c) {
    for (size_t r = 0; r < lanes; ++r) to[c * stride + r] = rows[r][c] * factor;
  }
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_TRANSPOSE_INL_H_
