// Linear projection y = x W^T + b in products of bf16 tiles (AMX). A job packs a panel of W once:
// its outputs in the columns of tiles, two inputs to a pair. Then it takes 32 rows of x at a time,
// rounded to bf16, and multiplies them by strips of 32 outputs over all inputs, so that sums stay
// in tile registers.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/tile_linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/simd/columns-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "cpu/simd/transpose-inl.h"
#include "cpu/tiles/amx.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Every processor with AMX has AVX-512, whose vectors are one row of a tile.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

// Rows and columns of a block of 2 x 2 tiles.
constexpr size_t kBlockSide = 2 * kTileSide;
// Most columns of a panel, and its most bytes, which stay in the second-level cache (2 MB).
constexpr size_t kMostColumns = 256, kPanelBytes = size_t{1} << 20;
// As in linear.cc.
constexpr int64_t kLeastJobRows = 128, kJobsPerThread = 4;

size_t depth_of(const LinearParams& p) { return round_up(static_cast<size_t>(p.in), kTileDepth); }

// From one row of x to the next. One tile more than the row, so that rows of a power of two do not
// share a few sets of the cache.
size_t x_stride(size_t depth) { return depth + kTileDepth; }

struct TileScratch {
  float* panel;    // [strip of 32 columns][pair][32]
  uint16_t* rows;  // 32 rows of x, or 16 of W
  float* sums;     // 32 x 32
  uint64_t bytes;
};

TileScratch lay_out(size_t depth, size_t columns, void* memory) {
  TileScratch s{};
  rules::Arena take(memory);
  take(s.panel, uint64_t{depth / 2} * columns);
  take(s.rows, uint64_t{kBlockSide} * x_stride(depth));
  take(s.sums, kBlockSide * kBlockSide);
  s.bytes = take.bytes();
  return s;
}

LinearLayout tile_sizes(const LinearParams& p, int threads) {
  const size_t depth = depth_of(p);
  const size_t fitting = kPanelBytes / (sizeof(uint16_t) * std::max<size_t>(depth, 1));
  const size_t columns =
      std::min(std::clamp(fitting / kBlockSide * kBlockSide, kBlockSide, kMostColumns),
               round_up(static_cast<size_t>(p.out), kBlockSide));
  const auto job_columns = static_cast<int64_t>(columns);
  const int64_t column_jobs = (p.out + job_columns - 1) / job_columns;
  const int64_t wanted = threads == 1 ? 1 : threads * kJobsPerThread;
  const int64_t row_jobs = std::clamp<int64_t>((wanted + column_jobs - 1) / column_jobs, 1,
                                               std::max<int64_t>(1, p.rows / kLeastJobRows));
  const int64_t rows = (p.rows + row_jobs - 1) / row_jobs;
  return {.job_rows = static_cast<int64_t>(round_up(static_cast<size_t>(rows), kBlockSide)),
          .job_columns = job_columns,
          .scratch_bytes = lay_out(depth, columns, nullptr).bytes};
}

// Outputs first .. first + columns - 1 of W; zeros up to whole strips.
void pack_weights(const LinearParams& p, size_t depth, int64_t first, size_t columns,
                  const TileScratch& s) {
  const DF d;
  std::array<const uint16_t*, kTileSide> rows;
  for (size_t c = 0; c < round_up(columns, kBlockSide); c += kTileSide) {
    for (size_t i = 0; i < kTileSide; ++i) {
      uint16_t* const row = s.rows + i * depth;
      rows[i] = row;
      if (c + i < columns) {
        read_bf16_row(d, p.weight, 0, 0, first + static_cast<int64_t>(c + i),
                      static_cast<size_t>(p.in), depth, row);
      } else {
        std::fill_n(row, depth, uint16_t{0});
      }
    }
    float* const strip = s.panel + c / kBlockSide * kBlockSide * (depth / 2);
    transpose_pairs(d, rows.data(), depth / 2, strip + c % kBlockSide, kBlockSide);
  }
}

void tile_linear(const LinearParams& p, const LinearLayout& layout, int64_t first_row,
                 int64_t first_column, void* scratch) {
  const DF d;
  const size_t depth = depth_of(p), in = static_cast<size_t>(p.in);
  const TileScratch s = lay_out(depth, static_cast<size_t>(layout.job_columns), scratch);
  const auto columns = static_cast<size_t>(std::min(layout.job_columns, p.out - first_column));
  pack_weights(p, depth, first_column, columns, s);
  const StoredRows x{.data = p.x, .stride = {0, 0, p.x_stride}};
  const int64_t end = std::min(first_row + layout.job_rows, p.rows);
  const TileSession session(*tile_unit());
  for (int64_t row = first_row; row < end; row += static_cast<int64_t>(kBlockSide)) {
    const size_t rows = std::min(kBlockSide, static_cast<size_t>(end - row));
    const size_t row_tiles = (rows + kTileSide - 1) / kTileSide;
    for (size_t r = 0; r < row_tiles * kTileSide; ++r) {
      uint16_t* const to = s.rows + r * x_stride(depth);
      if (r < rows) {
        read_bf16_row(d, x, 0, 0, row + static_cast<int64_t>(r), in, depth, to);
      } else {
        std::fill_n(to, depth, uint16_t{0});
      }
    }
    for (size_t column = 0; column < columns; column += kBlockSide) {
      tile_unit()->multiply({.a = s.rows,
                             .a_row = x_stride(depth) * sizeof(uint16_t),
                             .b = s.panel + column * (depth / 2),
                             .b_row = kBlockSide * sizeof(float),
                             .c = s.sums,
                             .c_row = kBlockSide * sizeof(float),
                             .row_tiles = row_tiles,
                             .column_tiles = kBlockSide / kTileSide,
                             .depth_tiles = depth / kTileDepth});
      for (size_t r = 0; r < rows; ++r) {
        float* const y = p.y + (row + static_cast<int64_t>(r)) * p.y_stride + first_column;
        const size_t stop = std::min(column + kBlockSide, columns);
        for (size_t c = column; c < stop; c += hn::Lanes(d)) {
          auto sum = hn::Load(d, s.sums + r * kBlockSide + (c - column));
          if (p.bias != nullptr) {
            sum = hn::Add(sum, load_up_to(d, p.bias + first_column + c, stop - c));
          }
          store_up_to(d, sum, y + c, stop - c);
        }
      }
    }
  }
}

#else

LinearLayout tile_sizes(const LinearParams&, int) { return {}; }
void tile_linear(const LinearParams&, const LinearLayout&, int64_t, int64_t, void*) {}

#endif

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(tile_sizes);
HWY_EXPORT(tile_linear);

LinearLayout tile_linear_layout(const LinearParams& params, int threads) {
  return HWY_DYNAMIC_DISPATCH(tile_sizes)(params, threads);
}

void tile_linear_block(const LinearParams& params, const LinearLayout& layout, int64_t first_row,
                       int64_t first_column, void* scratch) {
  HWY_DYNAMIC_DISPATCH(tile_linear)(params, layout, first_row, first_column, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
