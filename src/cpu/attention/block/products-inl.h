// Policies for the two products of attention: floats, pairs of bf16, or tiles of bf16
// (tile_products-inl.h). A policy defines how elements are multiplied, how queries and values are
// stored, and how many numbers of a row form one element (kUnit).
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_PRODUCTS_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_PRODUCTS_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_PRODUCTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "cpu/simd/tile_size.h"
#include "cpu/simd/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

struct F32Products {
  using Arithmetic = F32Arithmetic;
  using Key = float;  // type of an element of K in the product
  static constexpr size_t kUnit = 1;
  static constexpr bool kTiles = false;  // true if the products compute whole tiles

  // Length of a row of Q or K, in elements of the products.
  static size_t depth(size_t width) { return width; }

  static rules::ScaleFactors scale_factors(const AttentionParams& p) { return p.scale; }

  static HWY_INLINE void transpose_queries(DF d, const float* const* rows, size_t depth,
                                           float factor, float* to, size_t stride) {
    transpose_rows(d, rows, depth, factor, to, stride);
  }
  // Returns K in place if it is dense floats, otherwise converted to floats in `scratch`.
  static HWY_INLINE FloatRows keys(DF d, const AttentionParams& p, int64_t batch, int64_t head,
                                   int64_t first, size_t count, float* scratch) {
    const auto width = static_cast<size_t>(p.head_dim);
    return read_rows(d, p.k, batch, head, first, count, width, width, scratch);
  }
  // Copies rows first .. first + count - 1 of V into strips. `row` is scratch for one row.
  static void copy_values(DF d, const AttentionParams& p, int64_t batch, int64_t head,
                          int64_t first, size_t count, float* to, ptrdiff_t strip, float* row) {
    const auto width = static_cast<size_t>(p.value_dim);
    if (p.v.dense_floats()) {
      const FloatRows rows = read_rows(d, p.v, batch, head, first, count, width, width, nullptr);
      copy_to_strips<TileSize::kMaxVecs>(d, rows, count, width, to, strip);
      return;
    }
    for (size_t i = 0; i < count; ++i, to += TileSize::kMaxVecs * hn::Lanes(d)) {
      const FloatRows rows =
          read_rows(d, p.v, batch, head, first + static_cast<int64_t>(i), 1, width, width, row);
      copy_to_strips<TileSize::kMaxVecs>(d, rows, 1, width, to, strip);
    }
  }
  // Does nothing: the weights stay floats in the product with V.
  static void convert_weights(DF, float*, size_t, size_t) {}
};

#if MULTIHEAD_HAS_BF16_PAIRS || (HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86)
// Converts one vector of lanes to bf16. Row i then holds the weights of keys 2i (lower half) and 2i
// + 1 (upper half), rounded to nearest, ties away from zero. A missing last weight is 0.
template <class D>
HWY_NOINLINE void pair_weights(D d, float* HWY_RESTRICT weights, size_t stride, size_t keys) {
  const hn::RebindToUnsigned<D> du;
  const auto half = hn::Set(du, 0x8000U);
  const auto upper = hn::Set(du, 0xFFFF0000U);
  for (size_t key = 0; key < keys; key += 2) {
    const float* from = weights + key * stride;
    const auto low = hn::Add(hn::BitCast(du, hn::LoadU(d, from)), half);
    auto pair = hn::ShiftRight<16>(low);
    if (key + 1 < keys) {
      const auto high = hn::Add(hn::BitCast(du, hn::LoadU(d, from + stride)), half);
      pair = hn::Or(pair, hn::And(high, upper));
    }
    hn::StoreU(hn::BitCast(d, pair), d, weights + key / 2 * stride);
  }
}

#endif

#if MULTIHEAD_HAS_BF16_PAIRS
// Products of bf16, read in place, two numbers at a time. Queries cannot be scaled, so the softmax
// applies the whole scale.
struct Bf16PairProducts {
  using Arithmetic = Bf16PairArithmetic;
  using Key = uint16_t;
  static constexpr size_t kUnit = 2;
  static constexpr bool kTiles = false;

  static size_t depth(size_t width) { return width / kUnit; }

  struct Keys {
    const uint16_t* data;
    ptrdiff_t stride;
  };

  static rules::ScaleFactors scale_factors(const AttentionParams& p) {
    return {.queries = 1.0F, .scores = 1.0F, .softmax = p.scale.queries * p.scale.softmax};
  }
  static const uint16_t* row(const StoredRows& rows, int64_t batch, int64_t head, int64_t row) {
    return static_cast<const uint16_t*>(rows.data) + row_offset(rows.stride, batch, head, row);
  }
  static HWY_INLINE void transpose_queries(DF d, const uint16_t* const* rows, size_t depth, float,
                                           float* to, size_t stride) {
    transpose_pairs(d, rows, depth, to, stride);
  }
  static HWY_INLINE Keys keys(DF, const AttentionParams& p, int64_t batch, int64_t head,
                              int64_t first, size_t, float*) {
    return {row(p.k, batch, head, first), static_cast<ptrdiff_t>(p.k.stride[2])};
  }
  static void copy_values(DF d, const AttentionParams& p, int64_t batch, int64_t head,
                          int64_t first, size_t count, float* to, ptrdiff_t strip, float*) {
    copy_pairs_to_strips<TileSize::kMaxVecs>(d, row(p.v, batch, head, first),
                                             static_cast<ptrdiff_t>(p.v.stride[2]), count,
                                             static_cast<size_t>(p.value_dim), to, strip);
  }
  static HWY_INLINE void convert_weights(DF d, float* weights, size_t stride, size_t keys) {
    pair_weights(d, weights, stride, keys);
  }
};
#endif

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_PRODUCTS_INL_H_
