// The matrix product that everything stands on: a rank-1-update tile.
//
//   C[r][c] (+)= sum over k of A(r, k) * B[k][c]      r < rows, c < vecs * Lanes(d)
//
// A is broadcast an element at a time, B and C are read as vectors, so no product ends in a
// horizontal sum. Of attention it knows how scores become weights, and no option.
#if defined(MULTIHEAD_CPU_MICRO_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_MICRO_KERNEL_INL_H_
#undef MULTIHEAD_CPU_MICRO_KERNEL_INL_H_
#else
#define MULTIHEAD_CPU_MICRO_KERNEL_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/simd-inl.h"
#include "cpu/softmax-inl.h"
#include "cpu/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

enum class ALayout {
  kRowMajor,  // A(r, k) = a[r * stride + k]
  kColMajor,  // A(r, k) = a[k * stride + r]
};

// What an element of A and of B is.
enum class Elements {
  kFloats,
  kPairs,  // the bits of two bf16, of k and k + 1: see pair_add()
};

// An element of A, which is floats, or bf16 that are read two by two: those need not lie where a
// float may.
HWY_INLINE float element_of_a(const float* at) { return *at; }
HWY_INLINE float element_of_a(const uint16_t* at) {
  float pair;
  std::memcpy(&pair, at, sizeof(pair));
  return pair;
}

// Scores become weights exp2(to_log2 * (score - reference)) before they leave the registers, where
// their exponentials overlap with the next tile's products.
struct Weighing {
  float to_log2;
  const float* reference;  // [column]
  float* sum;              // [column] grows by the weights
};

// Rows of C that leave at once, times a factor each. `nan` is a vector of flags: lanes where one of
// them was NaN are set.
struct Means {
  float* to = nullptr;
  ptrdiff_t stride;
  const float* factor;  // [row]
  float* nan;
};

// Strides in numbers of their type; they may be negative. A is uint16_t for rows of bf16.
template <class A = float>
struct Product {
  const A* a;
  ptrdiff_t a_stride;
  const float* b;
  ptrdiff_t b_stride;
  ptrdiff_t b_strip;  // from one strip of columns to the next
  float* c;
  ptrdiff_t c_stride;
  size_t depth;             // number of k
  bool accumulate = false;  // adds to C
  float* top = nullptr;     // where given, top[c] rises to the largest of column c
  Weighing weighing = {};   // read by products of Result::kWeights
  Means means = {};  // kColMajor: where given, C is read, if it is to be added, but not written
};

// What is stored in C.
enum class Result { kProduct, kWeights };

// sum[r][v] = the sum over k < depth of A(r, k) * B[k][vector v]
template <ALayout kLayout, Elements kElements, size_t kRows, size_t kVecs, class D, class A,
          class V = hn::Vec<D>>
HWY_INLINE void add_products(D d, const A* HWY_RESTRICT a, ptrdiff_t a_stride,
                             const float* HWY_RESTRICT b, ptrdiff_t b_stride, size_t depth,
                             V (&sum)[kRows][kVecs]) {
  const size_t lanes = hn::Lanes(d);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVecs; ++v) sum[r][v] = hn::Zero(d);
  }
  for (size_t k = 0; k < depth; ++k) {
    V row[kVecs];
    for (size_t v = 0; v < kVecs; ++v) {
      row[v] = hn::LoadU(d, b + v * lanes);
    }
    b += b_stride;
    for (size_t r = 0; r < kRows; ++r) {
      const auto row_index = static_cast<ptrdiff_t>(r);
      const ptrdiff_t index = kLayout == ALayout::kRowMajor ? row_index * a_stride : row_index;
      const V factor = hn::Set(d, element_of_a(a + index));
      for (size_t v = 0; v < kVecs; ++v) {
        sum[r][v] = kElements == Elements::kPairs ? pair_add(factor, row[v], sum[r][v])
                                                  : mul_add(factor, row[v], sum[r][v]);
      }
    }
    a += kLayout == ALayout::kRowMajor ? static_cast<ptrdiff_t>(sizeof(float) / sizeof(A))
                                       : a_stride;
  }
}

// A function of its own, but with relaxed SIMD: inside of its caller's loop, tiles of 6 x 2 take 1
// to 4 % less of gpt2-1k and long-8k there. Those of simd128, whose sums and products fill the
// registers, lose 3 to 5 %; natively nothing changes.
#if HWY_ARCH_WASM && defined(__wasm_relaxed_simd__)
#define MULTIHEAD_TILE HWY_INLINE
#else
#define MULTIHEAD_TILE HWY_NOINLINE
#endif

// Rows from `first_row` on and columns from `first_column` on, where a, b and c point.
template <ALayout kLayout, Elements kElements, Result kResult, size_t kRows, size_t kVecs, class D,
          class A>
MULTIHEAD_TILE void product_tile(D d, const Product<A>& p, size_t first_row, size_t first_column,
                                 const A* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                                 float* first_c, size_t depth) {
  using V = hn::Vec<D>;
  const size_t lanes = hn::Lanes(d);
  V sum[kRows][kVecs];
  add_products<kLayout, kElements>(d, a, p.a_stride, b, p.b_stride, depth, sum);
  if constexpr (kResult == Result::kWeights) {
    const V to_log2 = hn::Set(d, p.weighing.to_log2);
    const Exp2Table HWY_RESTRICT table = exp2_table();
    for (size_t v = 0; v < kVecs; ++v) {
      const size_t column = first_column + v * lanes;
      const V reference = hn::LoadU(d, p.weighing.reference + column);
      V total = hn::LoadU(d, p.weighing.sum + column);
      for (size_t r = 0; r < kRows; ++r) {
        const V exponent = hn::Mul(hn::Sub(sum[r][v], reference), to_log2);
        const V weight = exp2_clamped(d, table, exponent);
        total = hn::Add(total, weight);
        hn::StoreU(weight, d, first_c + static_cast<ptrdiff_t>(r) * p.c_stride + v * lanes);
      }
      hn::StoreU(total, d, p.weighing.sum + column);
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
  if (p.top != nullptr) {
    float* const top = p.top + first_column;
    for (size_t v = 0; v < kVecs; ++v) {
      V largest = hn::LoadU(d, top + v * lanes);
      for (size_t r = 0; r < kRows; ++r) largest = hn::Max(sum[r][v], largest);
      hn::StoreU(largest, d, top + v * lanes);
    }
  }
  if (kLayout == ALayout::kColMajor && p.means.to != nullptr) {
    V nan = hn::LoadU(d, p.means.nan);
    float* to = p.means.to + static_cast<ptrdiff_t>(first_row) * p.means.stride + first_column;
    for (size_t r = 0; r < kRows; ++r, to += p.means.stride) {
      const V factor = hn::Set(d, p.means.factor[first_row + r]);
      for (size_t v = 0; v < kVecs; ++v) {
        const V mean = hn::Mul(sum[r][v], factor);
        nan = hn::Or(nan, hn::VecFromMask(d, hn::IsNaN(mean)));
        hn::StoreU(mean, d, to + v * lanes);
      }
    }
    hn::StoreU(nan, d, p.means.nan);
    return;
  }
  for (size_t r = 0; r < kRows; ++r) {
    float* c = first_c + static_cast<ptrdiff_t>(r) * p.c_stride;
    for (size_t v = 0; v < kVecs; ++v) hn::StoreU(sum[r][v], d, c + v * lanes);
  }
}

// Calls tile(count) for `rows` rows: tiles of kRows, then what is left in halves.
template <size_t kRows, class Tile>
HWY_INLINE void cut_rows(size_t rows, const Tile& tile) {
  // Two tiles of four rows keep the multipliers busy, where six and two do not: with 8 rows left,
  // as of bert's 128 = 20 * 6 + 8 keys in WebAssembly.
  constexpr size_t kKept = kRows == 6 ? 8 : 0;
  for (; rows >= kRows && rows != kKept; rows -= kRows) {
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

// A strip of kVecs vectors: whole tiles, then what is left in halves.
template <ALayout kLayout, Elements kElements, Result kResult, size_t kVecs, class D, class A,
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
    product_tile<kLayout, kElements, kResult, kCount, kVecs>(d, p, row, column, a, b, c,
                                                             depth(row, kCount));
    a += kCount * a_step;
    c += kCount * p.c_stride;
    row += kCount;
  };
  cut_rows<kRows>(rows, tile);
}

// All of C: `rows` x (`vecs` vectors), in strips of kStrip vectors. `depth(row, count)` is the
// number of k that rows row .. row + count - 1 need, and is asked before each tile.
template <ALayout kLayout, Elements kElements = Elements::kFloats,
          size_t kStrip = TileSize::kMaxVecs, Result kResult = Result::kProduct, class D, class A,
          class Depth>
HWY_INLINE void product(D d, const Product<A>& p, size_t rows, size_t vecs, const Depth& depth) {
  const float* b = p.b;
  // Strips outside, rows inside: a strip of B is read once from L2 and then reused.
  for (size_t v = 0; v < vecs; v += kStrip, b += p.b_strip) {
    const size_t column = v * hn::Lanes(d);
    switch (HWY_MIN(kStrip, vecs - v)) {
      case 4:
        if constexpr (kStrip >= 4) {
          product_strip<kLayout, kElements, kResult, 4>(d, p, rows, column, b, depth);
        }
        break;
      case 3:
        if constexpr (kStrip >= 3) {
          product_strip<kLayout, kElements, kResult, 3>(d, p, rows, column, b, depth);
        }
        break;
      case 2:
        product_strip<kLayout, kElements, kResult, 2>(d, p, rows, column, b, depth);
        break;
      default:
        product_strip<kLayout, kElements, kResult, 1>(d, p, rows, column, b, depth);
    }
  }
}

template <ALayout kLayout, Elements kElements = Elements::kFloats, class D, class A>
HWY_INLINE void product(D d, const Product<A>& p, size_t rows, size_t vecs) {
  product<kLayout, kElements>(d, p, rows, vecs, [&](size_t, size_t) { return p.depth; });
}

}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_MICRO_KERNEL_INL_H_
