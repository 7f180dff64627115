// A matrix product of any size from panels of B: some columns of B are packed into strips, which
// every block of rows of A then uses, a part of the depth at a time.
#if defined(MULTIHEAD_CPU_GEMM_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_GEMM_PANELS_INL_H_
#undef MULTIHEAD_CPU_GEMM_PANELS_INL_H_
#else
#define MULTIHEAD_CPU_GEMM_PANELS_INL_H_
#endif

#include <cstddef>

#include "cpu/cache_sizes.h"
#include "cpu/gemm/micro_kernel-inl.h"
#include "cpu/simd/columns-inl.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Most floats of a packed panel of B: three eighths of L2, so that the rows of A and C fit too, in
// WebAssembly as of 1 MB. With kColMajor, blocks of A are also packed, once for each panel, which
// pays for wide panels (2048x256x1024: 103 GFLOP/s instead of 92).
HWY_INLINE size_t most_panel_floats() {
#if HWY_ARCH_WASM
  return 98304;
#else
  constexpr size_t kUnit = 4096;  // depths are multiples of 16
  return static_cast<size_t>(l2_cache_bytes()) * 3 / 8 / sizeof(float) / kUnit * kUnit;
#endif
}
template <ALayout kLayout>
inline constexpr size_t kPanelColumns = kLayout == ALayout::kRowMajor ? 64 : 256;
template <ALayout kLayout>
HWY_INLINE size_t most_panel_depth() {
  return most_panel_floats() / kPanelColumns<kLayout>;
}

// A block of rows of C stays in L1 while the panel is used, kDepthBlock of its depth at a time.
// Without blocking of depth, 512x768x768 is as fast within 1 %, but the rounding error is three
// times larger.
constexpr size_t kRowBlock = 48;
constexpr size_t kDepthBlock = 256;

HWY_INLINE size_t strip_width() { return TileSize::kMaxVecs * hn::Lanes(DF()); }

template <ALayout kLayout>
HWY_INLINE size_t panel_columns() {
  return round_up(kPanelColumns<kLayout>, strip_width());
}

// Length of equal parts of `depth`, at most `most`.
HWY_INLINE size_t part_of(size_t depth, size_t most) {
  const size_t parts = ceil_div(depth, most);
  return parts == 0 ? 0 : round_up(ceil_div(depth, parts), hn::Lanes(DF()));
}

// C += A B for up to panel_columns() columns.
struct PanelProduct {
  const float* a;
  ptrdiff_t a_stride;
  float* c;
  ptrdiff_t c_stride;
  size_t rows, columns, depth;
};

// Scratch of multiply_panels(): a panel, and sums of columns that end within a vector.
template <ALayout kLayout>
HWY_INLINE size_t panel_floats(size_t depth) {
  return panel_columns<kLayout>() * part_of(depth, most_panel_depth<kLayout>()) +
         kRowBlock * strip_width();
}

// Copies rows of up to `columns` floats into strips of `width` columns that are `strip` floats
// apart, with zeros up to whole vectors.
inline HWY_NOINLINE void pack_copies(const float* HWY_RESTRICT from, ptrdiff_t stride, size_t rows,
                                     size_t columns, size_t width, size_t strip,
                                     float* HWY_RESTRICT to) {
  const DF d;
  for (size_t first = 0; first < columns; first += width, from += width, to += strip) {
    const size_t count = HWY_MIN(width, columns - first);
    for (size_t row = 0; row < rows; ++row) {
      const float* const source = from + static_cast<ptrdiff_t>(row) * stride;
      for (size_t c = 0; c < count; c += hn::Lanes(d)) {
        hn::Store(load_up_to(d, source + c, count - c), d, to + row * width + c);
      }
    }
  }
}

// Additional scratch of multiply_panels<kColMajor>() for a block of A. If A is read in place, rows
// that are 4 kB apart share few cache lines: 2048x256x1024 ran at 65 GFLOP/s.
constexpr size_t kTransposedFloats = kRowBlock * kDepthBlock;

// Not inlined, because in relaxed SIMD every copy would hold all tiles.
template <ALayout kLayout>
HWY_NOINLINE void multiply_panel(const Product<>& p, size_t rows, size_t vecs) {
  product<kLayout>(DF(), p, rows, vecs);
}

// Computes a product whose columns end within a vector; `edge` holds whole vectors.
template <ALayout kLayout>
HWY_NOINLINE void multiply_narrow_panel(Product<> p, size_t rows, size_t columns, float* edge) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const size_t vecs = ceil_div(columns, lanes);
  float* const c_begin = p.c;
  const ptrdiff_t c_stride = p.c_stride;
  const auto width = static_cast<ptrdiff_t>(vecs * lanes);
  p.c = edge;
  p.c_stride = width;
  p.accumulate = false;
  multiply_panel<kLayout>(p, rows, vecs);
  for (ptrdiff_t row = 0; row < static_cast<ptrdiff_t>(rows); ++row) {
    for (size_t column = 0; column < columns; column += lanes) {
      float* const at = c_begin + row * c_stride + column;
      const size_t rest = columns - column;
      const auto sum = hn::Add(hn::Load(d, edge + row * width + column), load_up_to(d, at, rest));
      store_up_to(d, sum, at, rest);
    }
  }
}

// Adds depth first .. first + depth - 1 to a block of up to kRowBlock rows of C.
template <ALayout kLayout>
HWY_NOINLINE void multiply_block(const PanelProduct& p, size_t row, size_t rows, size_t first,
                                 size_t depth, float* HWY_RESTRICT packed) {
  const size_t width = strip_width();
  const size_t most = part_of(p.depth, most_panel_depth<kLayout>());
  const size_t whole = p.columns / width * width;
  float* const edge = packed + panel_columns<kLayout>() * most;
  const auto at = static_cast<ptrdiff_t>(row);
  const ptrdiff_t a_row = kLayout == ALayout::kRowMajor ? p.a_stride : 1;
  const ptrdiff_t a_step = kLayout == ALayout::kRowMajor ? 1 : p.a_stride;
  const size_t step = part_of(depth, kDepthBlock);
  for (size_t k = 0; k < depth; k += step) {
    Product<> tile{.a = p.a + at * a_row + static_cast<ptrdiff_t>(first + k) * a_step,
                   .a_stride = p.a_stride,
                   .b = packed + k * width,
                   .b_stride = static_cast<ptrdiff_t>(width),
                   .b_strip = static_cast<ptrdiff_t>(most * width),
                   .c = p.c + at * p.c_stride,
                   .c_stride = p.c_stride,
                   .depth = HWY_MIN(step, depth - k),
                   .accumulate = true};
    if constexpr (kLayout == ALayout::kColMajor) {
      float* const transposed = packed + panel_floats<kLayout>(p.depth);
      pack_copies(tile.a, tile.a_stride, tile.depth, rows, kRowBlock, 0, transposed);
      tile.a = transposed;
      tile.a_stride = static_cast<ptrdiff_t>(kRowBlock);
    }
    multiply_panel<kLayout>(tile, rows, whole / hn::Lanes(DF()));
    if (whole == p.columns) continue;
    tile.b += whole / width * most * width;
    tile.c += whole;
    multiply_narrow_panel<kLayout>(tile, rows, p.columns - whole, edge);
  }
}

// `pack(first, depth, strip)` packs rows first .. first + depth - 1 of B into `packed`, in strips
// of strip_width() columns that are `strip` floats apart. `start(row, rows)` initializes these rows
// of C.
template <ALayout kLayout, class Pack, class Start>
HWY_INLINE void multiply_panels(const PanelProduct& p, float* HWY_RESTRICT packed, const Pack& pack,
                                const Start& start) {
  const size_t most = part_of(p.depth, most_panel_depth<kLayout>());
  if (p.depth == 0) start(0, p.rows);
  for (size_t first = 0; first < p.depth; first += most) {
    const size_t depth = HWY_MIN(most, p.depth - first);
    pack(first, depth, most * strip_width());
    for (size_t row = 0; row < p.rows; row += kRowBlock) {
      const size_t rows = HWY_MIN(kRowBlock, p.rows - row);
      if (first == 0) start(row, rows);
      multiply_block<kLayout>(p, row, rows, first, depth, packed);
    }
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_GEMM_PANELS_INL_H_
