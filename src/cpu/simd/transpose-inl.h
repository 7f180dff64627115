// Transposes rows of Q, masks and biases, so that queries are in the lanes as in the scores.
#if defined(MULTIHEAD_CPU_SIMD_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_SIMD_TRANSPOSE_INL_H_
#undef MULTIHEAD_CPU_SIMD_TRANSPOSE_INL_H_
#else
#define MULTIHEAD_CPU_SIMD_TRANSPOSE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/simd/file_namespace.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
inline constexpr size_t kSide = HWY_MAX_LANES_D(D);

// A square: as many vectors as a vector has lanes.
template <class D>
struct Square {
  // Written out, because the constructors of Highway's vectors for NEON_BF16 are inlined only into
  // functions of that target, and the implicit one is none.
  HWY_INLINE Square() {}  // NOLINT(modernize-use-equals-default)

  hn::Vec<D> row[kSide<D>];
};

// Transposes by log2(side) perfect shuffles of all elements. Each shuffle moves one bit of an
// element's index from the row to the column.
template <class D>
HWY_INLINE void transpose([[maybe_unused]] D d, [[maybe_unused]] Square<D>& square) {
  if constexpr (kSide < D >> 1) {
    constexpr size_t kHalf = kSide<D> / 2;
    for (size_t round = 1; round < kSide<D>; round *= 2) {
      Square<D> next;
      for (size_t i = 0; i < kHalf; ++i) {
        next.row[2 * i] = hn::InterleaveWholeLower(d, square.row[i], square.row[i + kHalf]);
        next.row[2 * i + 1] = hn::InterleaveWholeUpper(d, square.row[i], square.row[i + kHalf]);
      }
      square = next;
    }
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

// Loads elements first .. first + count - 1, `stride` apart, of `given` rows. Missing rows repeat
// the last row; elements beyond `count` are `fill`.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE Square<D> load_square(D d, const T* const* rows, size_t given, int64_t first,
                                 int64_t stride, size_t count, T fill) {
  constexpr size_t kLast = kSide<D> - 1;
  Square<D> square;
  if (HWY_LIKELY(stride == 1 && count > kLast && given > kLast)) {
    for (size_t i = 0; i <= kLast; ++i) square.row[i] = hn::LoadU(d, rows[i] + first);
    return square;
  }
  HWY_ALIGN T gathered[kSide<D> * kSide<D>];
  for (size_t i = 0; i <= kLast; ++i) {
    const T* row = rows[HWY_MIN(i, given - 1)] + first * stride;
    T* to = gathered + i * kSide<D>;
    for (size_t j = 0; j <= kLast; ++j) {
      to[j] = j < count ? row[static_cast<int64_t>(j) * stride] : fill;
    }
  }
  for (size_t i = 0; i <= kLast; ++i) square.row[i] = hn::Load(d, gathered + i * kSide<D>);
  return square;
}

template <class D>
HWY_INLINE void store_square(D d, const Square<D>& square, hn::TFromD<D>* HWY_RESTRICT to) {
  for (size_t i = 0; i < kSide<D>; ++i) hn::Store(square.row[i], d, to + i * kSide<D>);
}

// to[c * stride + r] = factor * rows[r][c] for r < Lanes(d), c < width.
template <class D>
HWY_NOINLINE void transpose_rows(D d, const float* const* rows, size_t width, float factor,
                                 float* HWY_RESTRICT to, size_t stride) {
  size_t c = 0;
  const auto by = hn::Set(d, factor);
  for (; c + kSide<D> <= width; c += kSide<D>) {
    Square<D> square;
    for (size_t r = 0; r < kSide<D>; ++r) square.row[r] = hn::Mul(hn::LoadU(d, rows[r] + c), by);
    transpose(d, square);
    for (size_t r = 0; r < kSide<D>; ++r) hn::StoreU(square.row[r], d, to + (c + r) * stride);
  }
  for (; c < width; ++c) {
    for (size_t r = 0; r < kSide<D>; ++r) to[c * stride + r] = rows[r][c] * factor;
  }
}

// transpose_rows() for bf16: to[c * stride + r] holds the bits of numbers 2c and 2c + 1 of row r.
template <class D>
HWY_NOINLINE void transpose_pairs(D d, const uint16_t* const* rows, size_t pairs,
                                  float* HWY_RESTRICT to, size_t stride) {
  const hn::Repartition<uint16_t, D> halves;
  size_t c = 0;
  for (; c + kSide<D> <= pairs; c += kSide<D>) {
    Square<D> square;
    for (size_t r = 0; r < kSide<D>; ++r) {
      square.row[r] = hn::BitCast(d, hn::LoadU(halves, rows[r] + 2 * c));
    }
    transpose(d, square);
    for (size_t r = 0; r < kSide<D>; ++r) hn::StoreU(square.row[r], d, to + (c + r) * stride);
  }
  for (; c < pairs; ++c) {
    for (size_t r = 0; r < kSide<D>; ++r) {
      std::memcpy(to + c * stride + r, rows[r] + 2 * c, sizeof(float));
    }
  }
}

// Transposes twice as many rows of bf16 as a vector has lanes, in whole vectors of columns: to[c *
// stride + r] = rows[r][c].
template <class D>
HWY_NOINLINE void transpose_halves(D d, const uint16_t* const* rows, size_t columns,
                                   uint16_t* HWY_RESTRICT to, size_t stride) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> half;
  for (size_t c = 0; c < columns; c += kSide<D>) {
    Square<D> square;
    for (size_t i = 0; i < kSide<D>; ++i) {
      const auto low = hn::PromoteTo(du, hn::LoadU(half, rows[2 * i] + c));
      const auto high = hn::PromoteTo(du, hn::LoadU(half, rows[2 * i + 1] + c));
      square.row[i] = hn::BitCast(d, hn::Or(low, hn::ShiftLeft<16>(high)));
    }
    transpose(d, square);
    for (size_t r = 0; r < kSide<D>; ++r) {
      hn::StoreU(square.row[r], d, reinterpret_cast<float*>(to + (c + r) * stride));
    }
  }
}

// to[r][c] = change(from[c * stride + r]) for c < width. Null rows are skipped.
template <class D, class Change>
HWY_INLINE void transpose_back(D d, const float* HWY_RESTRICT from, size_t stride, size_t width,
                               float* const* to, const Change& change) {
  for (size_t c = 0; c < width; c += kSide<D>) {
    const size_t count = HWY_MIN(kSide<D>, width - c);
    Square<D> square;
    for (size_t i = 0; i < kSide<D>; ++i) {
      square.row[i] = change(hn::LoadU(d, from + HWY_MIN(c + i, width - 1) * stride));
    }
    transpose(d, square);
    for (size_t r = 0; r < kSide<D>; ++r) {
      if (to[r] == nullptr) continue;
      if (HWY_LIKELY(count == kSide<D>)) {
        hn::StoreU(square.row[r], d, to[r] + c);
      } else {
        hn::StoreN(square.row[r], d, to[r] + c, count);
      }
    }
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_SIMD_TRANSPOSE_INL_H_
