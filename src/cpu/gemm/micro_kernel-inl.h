// The matrix product that all kernels use: a rank-1-update tile.
//
//   C[r][c] (+)= sum over k of A(r, k) * B[k][c]      r < rows, c < vecs * Lanes(d)
//
// A is broadcast one element at a time, B and C are read as vectors, so no product ends in a
// horizontal sum. The caller chooses the epilogue, which runs before the sums leave the registers:
// maxima of columns, exponentials (scores to weights), or a factor for each row (normalization).
#if defined(MULTIHEAD_CPU_GEMM_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_GEMM_MICRO_KERNEL_INL_H_
#undef MULTIHEAD_CPU_GEMM_MICRO_KERNEL_INL_H_
#else
#define MULTIHEAD_CPU_GEMM_MICRO_KERNEL_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/simd/file_namespace.h"
#include "cpu/simd/math-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

enum class ALayout {
  kRowMajor,  // A(r, k) = a[r * stride + k]
  kColMajor,  // A(r, k) = a[k * stride + r]
};

// An element of A: a float, or a pair of bf16, which need not be aligned as a float.
HWY_INLINE float element_of_a(const float* at) { return *at; }
HWY_INLINE float element_of_a(const uint16_t* at) {
  float pair;
  std::memcpy(&pair, at, sizeof(pair));
  return pair;
}

// A vector of successive elements of A.
template <class D>
HWY_INLINE hn::Vec<D> load_elements(D d, const float* at) {
  return hn::LoadU(d, at);
}
template <class D>
HWY_INLINE hn::Vec<D> load_elements(D d, const uint16_t* at) {
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint16_t, D>(), at));
}

// Turns scores into weights exp2(to_log2 * (score - reference)) before they leave the registers, so
// that the exponentials overlap with the products of the next tile.
struct FusedExp {
  float to_log2;
  const float* reference;  // [column]
  float* sum;              // [column] increased by the weights
};

// Stores rows of C elsewhere, each times its factor. `nan` is a vector of flags: lanes where a
// stored value was NaN are set.
struct NormalisedRows {
  float* to = nullptr;
  ptrdiff_t stride;
  const float* factor;  // [row]
  float* nan;
};

// Strides in elements; they may be negative. A is uint16_t for rows of bf16.
template <class A = float>
struct Product {
  const A* a;
  ptrdiff_t a_stride;
  const float* b;
  ptrdiff_t b_stride;
  ptrdiff_t b_strip;  // from one strip of columns to the next
  float* c;
  ptrdiff_t c_stride;
  size_t depth;                    // number of products per sum
  bool accumulate = false;         // adds to C
  float* column_max = nullptr;     // if given, column_max[c] rises to the largest of column c
  FusedExp fused_exp = {};         // used if Result is kWeights
  NormalisedRows normalized = {};  // kColMajor: if given, C may be added but is not written
};

// Range of k of a tile: first .. first + count - 1.
struct DepthRange {
  size_t first, count;
};

// The contents of C.
enum class Result { kProduct, kWeights };

// Adds A(r, k) * B[k][vector v] to sum[r][v] for one k; `factor` is a vector with A(r, k) in lane
// kLane.
template <class Arithmetic, size_t kLane, size_t kVecs, class V>
HWY_INLINE void add_lane(V factor, const V (&row)[kVecs], V (&sum)[kVecs]) {
  for (size_t v = 0; v < kVecs; ++v) {
    sum[v] = Arithmetic::template multiply_add_lane<kLane>(factor, row[v], sum[v]);
  }
}

template <size_t kVecs, class D, class V = hn::Vec<D>>
HWY_INLINE void load_row(D d, const float* HWY_RESTRICT b, V (&row)[kVecs]) {
  for (size_t v = 0; v < kVecs; ++v) row[v] = hn::LoadU(d, b + v * hn::Lanes(d));
}

// Computes sum[r][v], the sum over k < depth of A(r, k) * B[k][vector v].
template <ALayout kLayout, class Arithmetic, size_t kRows, size_t kVecs, class D, class A,
          class V = hn::Vec<D>>
HWY_INLINE void add_products(D d, const A* HWY_RESTRICT a, ptrdiff_t a_stride,
                             const float* HWY_RESTRICT b, ptrdiff_t b_stride, size_t depth,
                             V (&sum)[kRows][kVecs]) {
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVecs; ++v) sum[r][v] = hn::Zero(d);
  }
  constexpr auto kStep = static_cast<ptrdiff_t>(sizeof(float) / sizeof(A));  // numbers per element
  size_t k = 0;
  if constexpr (kMultipliesByLane && kLayout == ALayout::kRowMajor) {
    // Four k at a time: one load per row of A instead of four.
    for (; k + 4 <= depth; k += 4, a += 4 * kStep) {
      V factor[kRows];
      for (size_t r = 0; r < kRows; ++r) {
        factor[r] = load_elements(d, a + static_cast<ptrdiff_t>(r) * a_stride);
      }
      const auto add = [&](auto lane) HWY_ATTR MULTIHEAD_INLINED {
        V row[kVecs];
        load_row(d, b, row);
        b += b_stride;
        for (size_t r = 0; r < kRows; ++r) {
          add_lane<Arithmetic, decltype(lane)::value>(factor[r], row, sum[r]);
        }
      };
      add(std::integral_constant<size_t, 0>());
      add(std::integral_constant<size_t, 1>());
      add(std::integral_constant<size_t, 2>());
      add(std::integral_constant<size_t, 3>());
    }
  }
  for (; k < depth; ++k) {
    V row[kVecs];
    load_row(d, b, row);
    b += b_stride;
    size_t r = 0;
    if constexpr (kMultipliesByLane && kLayout == ALayout::kColMajor) {
      for (; r + 4 <= kRows; r += 4) {
        const V factor = load_elements(d, a + r);
        add_lane<Arithmetic, 0>(factor, row, sum[r]);
        add_lane<Arithmetic, 1>(factor, row, sum[r + 1]);
        add_lane<Arithmetic, 2>(factor, row, sum[r + 2]);
        add_lane<Arithmetic, 3>(factor, row, sum[r + 3]);
      }
    }
    for (; r < kRows; ++r) {
      const auto row_index = static_cast<ptrdiff_t>(r);
      const ptrdiff_t index = kLayout == ALayout::kRowMajor ? row_index * a_stride : row_index;
      const V factor = hn::Set(d, element_of_a(a + index));
      for (size_t v = 0; v < kVecs; ++v) {
        sum[r][v] = Arithmetic::multiply_add(factor, row[v], sum[r][v]);
      }
    }
    a += kLayout == ALayout::kRowMajor ? kStep : a_stride;
  }
}

// Computes a tile with rows from `first_row` on and columns from `first_column` on; a, b and c
// point there.
template <ALayout kLayout, class Arithmetic, Result kResult, size_t kRows, size_t kVecs, class D,
          class A>
HWY_INLINE void product_tile(D d, const Product<A>& p, size_t first_row, size_t first_column,
                             const A* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* first_c,
                             size_t depth) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V sum[kRows][kVecs];
  add_products<kLayout, Arithmetic>(d, a, p.a_stride, b, p.b_stride, depth, sum);
  if constexpr (kResult == Result::kWeights) {
    const V to_log2 = hn::Set(d, p.fused_exp.to_log2);
    const Exp2Table HWY_RESTRICT table = exp2_table();
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t column = first_column + v * lanes;
      const V reference = hn::LoadU(d, p.fused_exp.reference + column);
      V total = hn::LoadU(d, p.fused_exp.sum + column);
      for (size_t r = 0; r < kRows; ++r) {
        const V exponent = hn::Mul(hn::Sub(sum[r][v], reference), to_log2);
        const V weight = exp2_clamped(d, table, exponent);
        total = hn::Add(total, weight);
        hn::StoreU(weight, d, first_c + static_cast<ptrdiff_t>(r) * p.c_stride + v * lanes);
      }
      hn::StoreU(total, d, p.fused_exp.sum + column);
    }
    return;
  }
  if (p.accumulate) {
    for (size_t r = 0; r < kRows; ++r) {
      const float* c = first_c + static_cast<ptrdiff_t>(r) * p.c_stride;
      for (size_t v = 0; v < kVecs; ++v) {
        sum[r][v] = hn::Add(sum[r][v], hn::LoadU(d, c + v * lanes));
      }
    }
  }
  if (p.column_max != nullptr) {
    float* const column_max = p.column_max + first_column;
    for (size_t v = 0; v < kVecs; ++v) {
      V largest = hn::LoadU(d, column_max + v * lanes);
      for (size_t r = 0; r < kRows; ++r) largest = hn::Max(sum[r][v], largest);
      hn::StoreU(largest, d, column_max + v * lanes);
    }
  }
  if (kLayout == ALayout::kColMajor && p.normalized.to != nullptr) {
    V nan = hn::LoadU(d, p.normalized.nan);
    float* to =
        p.normalized.to + static_cast<ptrdiff_t>(first_row) * p.normalized.stride + first_column;
    for (size_t r = 0; r < kRows; ++r, to += p.normalized.stride) {
      const V factor = hn::Set(d, p.normalized.factor[first_row + r]);
      for (size_t v = 0; v < kVecs; ++v) {
        const V scaled = hn::Mul(sum[r][v], factor);
        nan = hn::Or(nan, hn::VecFromMask(d, hn::IsNaN(scaled)));
        hn::StoreU(scaled, d, to + v * lanes);
      }
    }
    hn::StoreU(nan, d, p.normalized.nan);
    return;
  }
  for (size_t r = 0; r < kRows; ++r) {
    float* c = first_c + static_cast<ptrdiff_t>(r) * p.c_stride;
    for (size_t v = 0; v < kVecs; ++v) hn::StoreU(sum[r][v], d, c + v * lanes);
  }
}

template <ALayout kLayout, class Arithmetic, Result kResult, size_t kRows, size_t kVecs, class D,
          class A>
HWY_NOINLINE void called_tile(D d, const Product<A>& p, size_t row, size_t column, const A* a,
                              const float* b, float* c, size_t depth) {
  product_tile<kLayout, Arithmetic, kResult, kRows, kVecs>(d, p, row, column, a, b, c, depth);
}

// True for tiles of full size in WebAssembly, which are inlined into the loop over tiles. Relaxed
// SIMD: 1 to 4 % faster on gpt2-1k and long-8k; inlining the smaller tiles too gains nothing and
// takes 1.3 kB. simd128: gpt2-1k, bert, vit and linear() take 0.85 to 0.88 of the time in Node 20,
// 0.97 to 0.99 in Node 26; inlining the smaller tiles too loses 1 to 5 %. Natively nothing changes.
constexpr bool inlines_tile(size_t rows, size_t vecs) {
  return HWY_ARCH_WASM != 0 && vecs == TileSize::kMaxVecs && rows == TileSize::rows(vecs);
}

// Calls product_tile() for the first `depth` k, or for a range of k. A single function that always
// adds the first k of the range would make gpt2-1k 1 to 4 % slower with simd128.
template <ALayout kLayout, class Arithmetic, Result kResult, size_t kRows, size_t kVecs, class D,
          class A>
HWY_INLINE void multiply_tile(D d, const Product<A>& p, size_t row, size_t column, const A* a,
                              const float* b, float* c, size_t depth) {
  if constexpr (inlines_tile(kRows, kVecs)) {
    product_tile<kLayout, Arithmetic, kResult, kRows, kVecs>(d, p, row, column, a, b, c, depth);
  } else {
    called_tile<kLayout, Arithmetic, kResult, kRows, kVecs>(d, p, row, column, a, b, c, depth);
  }
}
template <ALayout kLayout, class Arithmetic, Result kResult, size_t kRows, size_t kVecs, class D,
          class A>
HWY_INLINE void multiply_tile(D d, const Product<A>& p, size_t row, size_t column, const A* a,
                              const float* b, float* c, const DepthRange& depth) {
  const auto first = static_cast<ptrdiff_t>(depth.first);
  const ptrdiff_t a_step = kLayout == ALayout::kRowMajor ? 1 : p.a_stride;
  multiply_tile<kLayout, Arithmetic, kResult, kRows, kVecs>(d, p, row, column, a + first * a_step,
                                                            b + first * p.b_stride, c, depth.count);
}

// Calls tile(count) for `rows` rows: tiles of kRows, then tiles of 4, 2 and 1 for the rest.
template <size_t kRows, class Tile>
HWY_INLINE void cut_rows(size_t rows, const Tile& tile) {
  // Split 8 rows into two tiles of 4, which keep the multipliers busier than 6 and 2 (bert in
  // WebAssembly has 128 = 20 * 6 + 8 keys).
  constexpr size_t kTwoFours = kRows == 6 ? 8 : 0;
  for (; rows >= kRows && rows != kTwoFours; rows -= kRows) {
    tile(std::integral_constant<size_t, kRows>());
  }
  if constexpr (kRows > 4) {
    for (; rows >= 4; rows -= 4) tile(std::integral_constant<size_t, 4>());
  }
  if constexpr (kRows > 2) {
    if (rows >= 2) tile(std::integral_constant<size_t, 2>());
  }
  if (rows % 2 != 0) tile(std::integral_constant<size_t, 1>());
}

// Computes a strip of kVecs vectors, tile by tile.
template <ALayout kLayout, class Arithmetic, Result kResult, size_t kVecs, class D, class A,
          class Depth>
HWY_INLINE void product_strip(D d, const Product<A>& p, size_t rows, size_t column,
                              const float* HWY_RESTRICT b, const Depth& depth) {
  constexpr size_t kRows = TileSize::rows(kVecs);
  const ptrdiff_t a_step = kLayout == ALayout::kRowMajor ? p.a_stride : 1;
  const A* a = p.a;
  float* c = p.c + column;
  size_t row = 0;
  const auto tile = [&](auto count) HWY_ATTR MULTIHEAD_INLINED {
    constexpr ptrdiff_t kCount = decltype(count)::value;
    multiply_tile<kLayout, Arithmetic, kResult, kCount, kVecs>(d, p, row, column, a, b, c,
                                                               depth(row, kCount));
    a += kCount * a_step;
    c += kCount * p.c_stride;
    row += kCount;
  };
  cut_rows<kRows>(rows, tile);
}

// Computes all of C, `rows` x (`vecs` vectors), in strips of kStrip vectors. `depth(row, count)`,
// called before each tile, returns the number or the range of k that rows row .. row + count - 1
// need.
template <ALayout kLayout, class Arithmetic = F32Arithmetic, size_t kStrip = TileSize::kMaxVecs,
          Result kResult = Result::kProduct, class D, class A, class Depth>
HWY_INLINE void product(D d, const Product<A>& p, size_t rows, size_t vecs, const Depth& depth) {
  HWY_DASSERT(kLayout == ALayout::kColMajor || p.normalized.to == nullptr);
  HWY_DASSERT(kResult == Result::kProduct || (!p.accumulate && p.fused_exp.reference != nullptr));
  HWY_DASSERT(vecs <= kStrip || p.b_strip != 0 || p.depth == 0);
  const float* b = p.b;
  // The inner loop is over rows: a strip of B is read once from L2 and then reused.
  for (size_t v = 0; v < vecs; v += kStrip, b += p.b_strip) {
    const size_t column = v * hn::Lanes(d);
    switch (HWY_MIN(kStrip, vecs - v)) {
      case 4:
        if constexpr (kStrip >= 4) {
          product_strip<kLayout, Arithmetic, kResult, 4>(d, p, rows, column, b, depth);
        }
        break;
      case 3:
        if constexpr (kStrip >= 3) {
          product_strip<kLayout, Arithmetic, kResult, 3>(d, p, rows, column, b, depth);
        }
        break;
      case 2:
        product_strip<kLayout, Arithmetic, kResult, 2>(d, p, rows, column, b, depth);
        break;
      default:
        product_strip<kLayout, Arithmetic, kResult, 1>(d, p, rows, column, b, depth);
    }
  }
}

template <ALayout kLayout, class Arithmetic = F32Arithmetic, class D, class A>
HWY_INLINE void product(D d, const Product<A>& p, size_t rows, size_t vecs) {
  product<kLayout, Arithmetic>(d, p, rows, vecs, [&](size_t, size_t) { return p.depth; });
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_GEMM_MICRO_KERNEL_INL_H_
