// Matrix products in tiles of bf16 (AMX). A job packs a panel of b once: its columns in the columns
// of tiles, two steps of the depth to a pair. It then takes 32 rows of a at a time, rounded to
// bf16, and multiplies them by strips of 32 columns. Sums stay in tile registers over the whole
// depth of the panel.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/gemm/gemm.h"
#include "rules/arena.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/tile_gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/amx/amx.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

// Every processor with AMX has AVX-512. A 512-bit vector is one row of a tile.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

using rules::StoredRows;

// Rows and columns of a block of 2 x 2 tiles.
constexpr size_t kBlockSide = 2 * kTileSide;

// Scratch memory of a job. `depth`: depth of the panel, in whole tiles.
struct TilePanel {
  float* panel;    // [strip of 32 columns][pair][32]
  uint16_t* rows;  // 32 rows of A, or rows of B during packing
  float* sums;     // 32 x 32
  size_t depth;
  uint64_t bytes;

  // Stride from one row of A to the next: one tile more than the row, so that rows whose length is
  // a power of two are spread over all sets of the cache.
  size_t row_stride() const { return depth + kTileDepth; }
  float* strip(size_t column) const { return panel + column / kBlockSide * kBlockSide * depth / 2; }
};

TilePanel lay_out_tile_panel(size_t depth, size_t columns, void* memory) {
  TilePanel s{};
  s.depth = depth;
  rules::Arena take(memory);
  take(s.panel, uint64_t{depth / 2} * columns);
  take(s.rows, uint64_t{kBlockSide} * s.row_stride());
  take(s.sums, kBlockSide * kBlockSide);
  s.bytes = take.bytes();
  return s;
}

// Reads `count` rows of A from `first` on, rounded to bf16, with zeros up to whole tiles.
void read_tile_rows(const StoredRows& a, int64_t first, size_t count, size_t width,
                    const TilePanel& s) {
  const DF d;
  for (size_t r = 0; r < round_up(count, kTileSide); ++r) {
    uint16_t* const to = s.rows + r * s.row_stride();
    if (r < count) {
      read_bf16_row(d, a, 0, 0, first + static_cast<int64_t>(r), width, s.depth, to);
    } else {
      std::fill_n(to, s.depth, uint16_t{0});
    }
  }
}

// C = A B for `rows` rows. `read(row, count)` writes these rows of A to s.rows, see
// read_tile_rows(). `take(sum, row, column, rest)` receives the sums of one vector of columns, of
// which only the first `rest` exist.
template <class Read, class Take>
HWY_INLINE void multiply_tile_panel(const TilePanel& s, size_t rows, size_t columns,
                                    const Read& read, const Take& take) {
  const DF d;
  const TileSession session(*tile_unit());
  for (size_t row = 0; row < rows; row += kBlockSide) {
    const size_t count = std::min(kBlockSide, rows - row);
    read(row, count);
    for (size_t column = 0; column < columns; column += kBlockSide) {
      tile_unit()->multiply({.a = s.rows,
                             .a_row = s.row_stride() * sizeof(uint16_t),
                             .b = s.strip(column),
                             .b_row = kBlockSide * sizeof(float),
                             .c = s.sums,
                             .c_row = kBlockSide * sizeof(float),
                             .row_tiles = ceil_div(count, kTileSide),
                             .column_tiles = kBlockSide / kTileSide,
                             .depth_tiles = s.depth / kTileDepth});
      const size_t stop = std::min(column + kBlockSide, columns);
      for (size_t r = 0; r < count; ++r) {
        const float* const sums = s.sums + r * kBlockSide;
        for (size_t c = column; c < stop; c += hn::Lanes(d)) {
          take(hn::Load(d, sums + (c - column)), row + r, c, stop - c);
        }
      }
    }
  }
}

// Depth of a panel, at least of the whole product if b is transposed. Otherwise a longer depth is
// cut into parts, whose sums are added in order, so rounding errors do not grow with all rows of a
// batch.
size_t panel_depth(const GemmParams& p) {
  constexpr size_t kMostDepth = 1024;
  const size_t whole = round_up(static_cast<size_t>(p.depth), kTileDepth);
  return p.b_transposed ? whole : std::min(whole, kMostDepth);
}

// Most columns of a panel, which takes at most 1 MB and stays in the second-level cache (2 MB).
size_t panel_columns(const GemmParams& p) {
  // At least one strip, even if only sums of columns are requested.
  const size_t all = std::max(round_up(static_cast<size_t>(p.columns), kBlockSide), kBlockSide);
  if (!p.b_transposed) return std::min<size_t>(all, 512);
  constexpr size_t kPanelBytes = size_t{1} << 20;
  const size_t fitting = kPanelBytes / (sizeof(uint16_t) * std::max<size_t>(panel_depth(p), 1));
  return std::min(std::clamp<size_t>(fitting / kBlockSide * kBlockSide, kBlockSide, 256), all);
}

GemmBlock tile_block;

GemmLayout tile_layout(const GemmParams& p, int threads) {
  const size_t columns = panel_columns(p);
  GemmLayout layout = divide_gemm(p, threads, static_cast<int64_t>(columns), 128, 4);
  layout.job_rows =
      static_cast<int64_t>(round_up(static_cast<size_t>(layout.job_rows), kBlockSide));
  layout.scratch_bytes = lay_out_tile_panel(panel_depth(p), columns, nullptr).bytes;
  layout.block = tile_block;
  return layout;
}

// Packs outputs first .. first + columns - 1 of W, with zeros up to whole strips.
void pack_weights(const StoredRows& weights, int64_t first, size_t columns, size_t depth,
                  const TilePanel& s) {
  const DF d;
  std::array<const uint16_t*, kTileSide> rows;
  for (size_t c = 0; c < round_up(columns, kBlockSide); c += kTileSide) {
    for (size_t i = 0; i < kTileSide; ++i) {
      uint16_t* const row = s.rows + i * s.depth;
      rows[i] = row;
      if (c + i < columns) {
        read_bf16_row(d, weights, 0, 0, first + static_cast<int64_t>(c + i), depth, s.depth, row);
      } else {
        std::fill_n(row, s.depth, uint16_t{0});
      }
    }
    transpose_pairs(d, rows.data(), s.depth / 2, s.strip(c) + c % kBlockSide, kBlockSide);
  }
}

// Rounds a vector of floats to bf16, to nearest even, in the lower halves of the lanes.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> bf16_bits(hn::Vec<DF> value) {
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> half;
  const hn::Rebind<hwy::bfloat16_t, DF> to;
  return hn::PromoteTo(du, hn::BitCast(half, hn::DemoteTo(to, value)));
}

// Packs `depth` rows of `columns` columns of B, with zeros up to whole tiles and strips.
HWY_NOINLINE void pack_pairs(const float* b, int64_t stride, size_t depth, size_t columns,
                             const TilePanel& s) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  for (size_t strip = 0; strip < columns; strip += kBlockSide) {
    float* to = s.strip(strip);
    for (size_t k = 0; k < s.depth; k += 2, to += kBlockSide) {
      const float* const row = b + static_cast<int64_t>(k) * stride;
      for (size_t c = strip; c < strip + kBlockSide; c += lanes) {
        auto pair = hn::Zero(hn::RebindToUnsigned<DF>());
        if (c < columns && k < depth) {
          pair = bf16_bits(load_up_to(d, row + c, columns - c));
          if (k + 1 < depth) {
            const auto high = bf16_bits(load_up_to(d, row + stride + c, columns - c));
            pair = hn::Or(pair, hn::ShiftLeft<16>(high));
          }
        }
        hn::Store(hn::BitCast(d, pair), d, to + (c - strip));
      }
    }
  }
}

// Reads columns first .. first + count - 1 of `depth` rows as rows of A.
HWY_NOINLINE void read_tile_columns(const StoredRows& a, int64_t first, size_t count, size_t depth,
                                    const TilePanel& s) {
  const DF d;
  HWY_ALIGN uint16_t staged[kTileDepth * kBlockSide];
  std::array<const uint16_t*, kTileDepth> rows;
  StoredRows columns = a;
  columns.data = static_cast<const float*>(a.data) + first;
  for (size_t k = 0; k < s.depth; k += kTileDepth) {
    for (size_t i = 0; i < kTileDepth; ++i) {
      uint16_t* const to = staged + i * kBlockSide;
      rows[i] = to;
      if (k + i < depth) {
        read_bf16_row(d, columns, 0, 0, static_cast<int64_t>(k + i), count, kBlockSide, to);
      } else {
        std::fill_n(to, kBlockSide, uint16_t{0});
      }
    }
    transpose_halves(d, rows.data(), round_up(count, kTileSide), s.rows + k, s.row_stride());
  }
}

void tile_block(const GemmParams& p, const GemmLayout& layout, int64_t first_row,
                int64_t first_column, void* scratch) {
  const DF d;
  const auto columns = static_cast<size_t>(std::min(layout.job_columns, p.columns - first_column));
  const auto rows = static_cast<size_t>(std::min(layout.job_rows, p.rows - first_row));
  const auto whole = static_cast<size_t>(p.depth);
  const size_t most = panel_depth(p);
  size_t k = 0;
  do {
    const size_t depth = std::min(most, whole - k);
    const auto at = static_cast<int64_t>(k);
    const TilePanel s = lay_out_tile_panel(round_up(depth, kTileDepth),
                                           static_cast<size_t>(layout.job_columns), scratch);
    if (p.b_transposed) {
      pack_weights(p.b, first_column, columns, depth, s);
    } else {
      const int64_t stride = p.b.stride[2];
      pack_pairs(static_cast<const float*>(p.b.data) + at * stride + first_column, stride, depth,
                 columns, s);
    }
    const StoredRows a{.data = p.a + at * (p.a_transposed ? p.a_stride : 1),
                       .stride = {0, 0, p.a_stride}};
    const bool adds = p.adds || k > 0;
    multiply_tile_panel(
        s, rows, columns,
        [&](size_t row, size_t count) {
          const int64_t first = first_row + static_cast<int64_t>(row);
          if (p.a_transposed) {
            read_tile_columns(a, first, count, depth, s);
          } else {
            read_tile_rows(a, first, count, depth, s);
          }
        },
        [&](hn::Vec<DF> sum, size_t row, size_t column, size_t rest) HWY_ATTR {
          const int64_t at_column = first_column + static_cast<int64_t>(column);
          float* const c = p.c + (first_row + static_cast<int64_t>(row)) * p.c_stride + at_column;
          if (p.bias != nullptr) sum = hn::Add(sum, load_up_to(d, p.bias + at_column, rest));
          if (adds) sum = hn::Add(sum, load_up_to(d, c, rest));
          store_up_to(d, sum, c, rest);
        });
    k += most;
  } while (k < whole);
}

#else

GemmLayout tile_layout(const GemmParams&, int) { return {}; }

#endif

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(tile_layout);

GemmLayout tile_gemm_layout(const GemmParams& params, int threads) {
  return HWY_DYNAMIC_DISPATCH(tile_layout)(params, threads);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
