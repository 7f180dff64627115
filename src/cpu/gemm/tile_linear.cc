// Linear projection y = x W^T + b with products of bf16 tiles (AMX). A job packs a panel of W once:
// outputs in the columns of tiles, two inputs to a pair. It then takes 32 rows of x at a time,
// rounded to bf16, and multiplies them by strips of 32 outputs over all inputs.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/tile_linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/amx/amx.h"
#include "cpu/gemm/tile_panels-inl.h"
#include "cpu/simd/columns-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "cpu/simd/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

// Most columns and most bytes of a panel, which stays in the second-level cache (2 MB).
constexpr size_t kMostColumns = 256, kPanelBytes = size_t{1} << 20;

size_t depth_of(const LinearParams& p) { return round_up(static_cast<size_t>(p.in), kTileDepth); }

LinearLayout tile_sizes(const LinearParams& p, int threads) {
  const size_t depth = depth_of(p);
  const size_t fitting = kPanelBytes / (sizeof(uint16_t) * std::max<size_t>(depth, 1));
  const size_t columns =
      std::min(std::clamp(fitting / kBlockSide * kBlockSide, kBlockSide, kMostColumns),
               round_up(static_cast<size_t>(p.out), kBlockSide));
  return tile_panel_layout(p.rows, p.out, columns, depth, threads);
}

// Packs outputs first .. first + columns - 1 of W, with zeros up to whole strips.
void pack_weights(const LinearParams& p, int64_t first, size_t columns, const TilePanel& s) {
  const DF d;
  std::array<const uint16_t*, kTileSide> rows;
  for (size_t c = 0; c < round_up(columns, kBlockSide); c += kTileSide) {
    for (size_t i = 0; i < kTileSide; ++i) {
      uint16_t* const row = s.rows + i * s.depth;
      rows[i] = row;
      if (c + i < columns) {
        read_bf16_row(d, p.weight, 0, 0, first + static_cast<int64_t>(c + i),
                      static_cast<size_t>(p.in), s.depth, row);
      } else {
        std::fill_n(row, s.depth, uint16_t{0});
      }
    }
    transpose_pairs(d, rows.data(), s.depth / 2, s.strip(c) + c % kBlockSide, kBlockSide);
  }
}

void tile_linear(const LinearParams& p, const LinearLayout& layout, int64_t first_row,
                 int64_t first_column, void* scratch) {
  const DF d;
  const TilePanel s =
      lay_out_tile_panel(depth_of(p), static_cast<size_t>(layout.job_columns), scratch);
  const auto columns = static_cast<size_t>(std::min(layout.job_columns, p.out - first_column));
  pack_weights(p, first_column, columns, s);
  const StoredRows x{.data = p.x, .stride = {0, 0, p.x_stride}};
  float* const y = p.y + first_row * p.y_stride + first_column;
  multiply_tile_panel(
      s, static_cast<size_t>(std::min(layout.job_rows, p.rows - first_row)), columns,
      [&](size_t row, size_t count) {
        read_tile_rows(x, first_row + static_cast<int64_t>(row), count, static_cast<size_t>(p.in),
                       s);
      },
      [&](hn::Vec<DF> sum, size_t row, size_t column, size_t rest) HWY_ATTR {
        if (p.bias != nullptr) {
          sum = hn::Add(sum, load_up_to(d, p.bias + first_column + column, rest));
        }
        store_up_to(d, sum, y + static_cast<int64_t>(row) * p.y_stride + column, rest);
      });
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
