// The matrix product that everything stands on: a rank-1-update tile.
//
//   C[r][c] (+)= sum over k of A(r, k) * B[k][c]      r < rows, c < vecs * Lanes(d)
//
// A is broadcast an element at a time, B and C are read as vectors, so no product ends in a
// horizontal sum. It knows no option of attention.
#if defined(MULTIHEAD_CPU_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_MICRO_KERNEL_INL_H_
#undef MULTIHEAD_CPU_MICRO_KERNEL_INL_H_
#else
#define MULTIHEAD_CPU_MICRO_KERNEL_INL_H_
#endif

#include <cstddef>
#include <utility>

#include "cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

enum class ALayout {
  kRowMajor,  // A(r, k) = a[r * stride + k]
  kColMajor,  // A(r, k) = a[k * stride + r]
};

enum class Store {
  kOverwrite,
  kAccumulate,
};

// Strides in elements; they may be negative.
struct Product {
  const float* a;
  ptrdiff_t a_stride;
  const float* b;
  ptrdiff_t b_stride;
  float* c;
  ptrdiff_t c_stride;
  size_t depth;  // number of k
};

// Not inlined: V8 optimises a WebAssembly function only between its calls, so the inner
// loop has to be a function that is called often.
template <ALayout kLayout, Store kStore, size_t kRows, size_t kVecs, class D>
HWY_NOINLINE void product_tile(D d, const Product& p) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  const float* HWY_RESTRICT a = p.a;
  const float* HWY_RESTRICT b = p.b;
  const ptrdiff_t a_stride = p.a_stride;
  const ptrdiff_t b_stride = p.b_stride;

  V sum[kRows][kVecs];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVecs; ++v) sum[r][v] = hn::Zero(d);
  }
  for (size_t k = 0; k < p.depth; ++k) {
    V row[kVecs];
    for (size_t v = 0; v < kVecs; ++v) {
      row[v] = hn::LoadU(d, b + v * lanes);
    }
    b += b_stride;
    for (size_t r = 0; r < kRows; ++r) {
      const auto row_index = static_cast<ptrdiff_t>(r);
      const ptrdiff_t index = kLayout == ALayout::kRowMajor ? row_index * a_stride : row_index;
      const V factor = hn::Set(d, a[index]);
      for (size_t v = 0; v < kVecs; ++v) sum[r][v] = mul_add(factor, row[v], sum[r][v]);
    }
    a += kLayout == ALayout::kRowMajor ? 1 : a_stride;
  }
  for (size_t r = 0; r < kRows; ++r) {
    float* c = p.c + static_cast<ptrdiff_t>(r) * p.c_stride;
    for (size_t v = 0; v < kVecs; ++v) {
      float* at = c + v * lanes;
      if constexpr (kStore == Store::kAccumulate) {
        hn::StoreU(hn::Add(sum[r][v], hn::LoadU(d, at)), d, at);
      } else {
        hn::StoreU(sum[r][v], d, at);
      }
    }
  }
}

// Calls the tile of `rows` x `vecs`, both from 1 to the template's maximum.
template <ALayout kLayout, Store kStore, size_t kMaxRows, size_t kMaxVecs, class D>
HWY_INLINE void product_edge(D d, const Product& p, size_t rows, size_t vecs) {
  using Tile = void (*)(D, const Product&);
  static constexpr auto kTiles = []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    struct Table {
      Tile tile[kMaxRows * kMaxVecs];
    };
    return Table{
        {&product_tile<kLayout, kStore, kIndex / kMaxVecs + 1, kIndex % kMaxVecs + 1, D>...}};
  }
  (std::make_index_sequence<kMaxRows * kMaxVecs>());
  kTiles.tile[(rows - 1) * kMaxVecs + vecs - 1](d, p);
}

// All of C: `rows` x (`vecs` vectors), in tiles of kMaxRows x kMaxVecs.
template <ALayout kLayout, Store kStore, size_t kMaxRows, size_t kMaxVecs, class D>
HWY_INLINE void product(D d, const Product& whole, size_t rows, size_t vecs) {
  const size_t lanes = hn::Lanes(d);
  constexpr auto kStep = static_cast<ptrdiff_t>(kMaxRows);
  // Vectors outside, rows inside: a strip of B is read once from L2 and then reused.
  for (size_t v = 0; v < vecs; v += kMaxVecs) {
    const size_t tile_vecs = HWY_MIN(kMaxVecs, vecs - v);
    Product p = whole;
    p.b = whole.b + v * lanes;
    p.c = whole.c + v * lanes;
    for (size_t r = 0; r < rows; r += kMaxRows) {
      const size_t tile_rows = HWY_MIN(kMaxRows, rows - r);
      if (HWY_LIKELY(tile_rows == kMaxRows && tile_vecs == kMaxVecs)) {
        product_tile<kLayout, kStore, kMaxRows, kMaxVecs>(d, p);
      } else {
        product_edge<kLayout, kStore, kMaxRows, kMaxVecs>(d, p, tile_rows, tile_vecs);
      }
      p.a += kLayout == ALayout::kRowMajor ? kStep * p.a_stride : kStep;
      p.c += kStep * p.c_stride;
    }
  }
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_MICRO_KERNEL_INL_H_
