// Loop shared by the matrix products in tiles of bf16 (AMX): 32 rows of A at a time, times a packed
// panel of B. Sums stay in tile registers over the whole depth of the panel.
#if defined(MULTIHEAD_CPU_GEMM_TILE_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_GEMM_TILE_PANELS_INL_H_
#undef MULTIHEAD_CPU_GEMM_TILE_PANELS_INL_H_
#else
#define MULTIHEAD_CPU_GEMM_TILE_PANELS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/amx/amx.h"
#include "cpu/kernels.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

// Every processor with AMX has AVX-512. A 512-bit vector is one row of a tile.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

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

inline TilePanel lay_out_tile_panel(size_t depth, size_t columns, void* memory) {
  TilePanel s{};
  s.depth = depth;
  rules::Arena take(memory);
  take(s.panel, uint64_t{depth / 2} * columns);
  take(s.rows, uint64_t{kBlockSide} * s.row_stride());
  take(s.sums, kBlockSide * kBlockSide);
  s.bytes = take.bytes();
  return s;
}

// Layout of jobs. Each job packs its own panel, as in linear.cc.
inline LinearLayout tile_panel_layout(int64_t rows, int64_t columns, size_t panel_columns,
                                      size_t depth, int threads) {
  constexpr int64_t kLeastJobRows = 128, kJobsPerThread = 4;
  const auto job_columns = static_cast<int64_t>(panel_columns);
  const int64_t column_jobs = std::max<int64_t>(1, (columns + job_columns - 1) / job_columns);
  const int64_t wanted = threads == 1 ? 1 : threads * kJobsPerThread;
  const int64_t row_jobs = std::clamp<int64_t>((wanted + column_jobs - 1) / column_jobs, 1,
                                               std::max<int64_t>(1, rows / kLeastJobRows));
  return {.job_rows = static_cast<int64_t>(
              round_up(static_cast<size_t>((rows + row_jobs - 1) / row_jobs), kBlockSide)),
          .job_columns = job_columns,
          .scratch_bytes = lay_out_tile_panel(depth, panel_columns, nullptr).bytes};
}

// Reads `count` rows of A from `first` on, rounded to bf16, with zeros up to whole tiles.
inline void read_tile_rows(const StoredRows& a, int64_t first, size_t count, size_t width,
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
                             .row_tiles = (count + kTileSide - 1) / kTileSide,
                             .column_tiles = kBlockSide / kTileSide,
                             .depth_tiles = s.depth / kTileDepth});
      const size_t stop = std::min(column + kBlockSide, columns);
      for (size_t r = 0; r < count; ++r) {
        const float* const of_row = s.sums + r * kBlockSide;
        for (size_t c = column; c < stop; c += hn::Lanes(d)) {
          take(hn::Load(d, of_row + (c - column)), row + r, c, stop - c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // MULTIHEAD_CPU_GEMM_TILE_PANELS_INL_H_
