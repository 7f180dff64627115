// Products of a linear projection's backward in tiles of bf16 (AMX): d_x = d_y W and d_weight =
// d_y^T x. The packed operand has its columns in the lanes already, so two of its rows become a row
// of pairs without a transpose. For d_weight, d_y is transposed.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/gemm/products.h"
#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm/tile_products.cc"
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

// Most columns and rows of a panel of B: 1 MB, which stays in the second-level cache. A longer
// depth is cut into parts, whose sums are added in order, so rounding errors do not grow with all
// rows of a batch.
constexpr size_t kMostProductColumns = 512, kMostDepth = 1024;

size_t panel_depth(const ProductParams& p) {
  return std::min(round_up(static_cast<size_t>(p.depth), kTileDepth), kMostDepth);
}

LinearLayout tile_product_sizes(const ProductParams& p, int threads) {
  // At least one strip, even if only sums of columns are requested.
  const size_t columns = std::clamp(round_up(static_cast<size_t>(p.columns), kBlockSide),
                                    kBlockSide, kMostProductColumns);
  return tile_panel_layout(p.rows, p.columns, columns, panel_depth(p), threads);
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

void tile_product(const ProductParams& p, const LinearLayout& layout, int64_t first_row,
                  int64_t first_column, void* scratch) {
  const DF d;
  const auto columns = static_cast<size_t>(std::min(layout.job_columns, p.columns - first_column));
  const auto rows = static_cast<size_t>(std::min(layout.job_rows, p.rows - first_row));
  const size_t most = panel_depth(p);
  for (size_t k = 0; k < static_cast<size_t>(p.depth); k += most) {
    const size_t depth = std::min(most, static_cast<size_t>(p.depth) - k);
    const auto at = static_cast<int64_t>(k);
    const TilePanel s = lay_out_tile_panel(round_up(depth, kTileDepth),
                                           static_cast<size_t>(layout.job_columns), scratch);
    pack_pairs(p.b + at * p.b_stride + first_column, p.b_stride, depth, columns, s);
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
          float* const c = p.c + (first_row + static_cast<int64_t>(row)) * p.c_stride +
                           first_column + static_cast<int64_t>(column);
          if (adds) sum = hn::Add(sum, load_up_to(d, c, rest));
          store_up_to(d, sum, c, rest);
        });
  }
}

#else

LinearLayout tile_product_sizes(const ProductParams&, int) { return {}; }
void tile_product(const ProductParams&, const LinearLayout&, int64_t, int64_t, void*) {}

#endif

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(tile_product_sizes);
HWY_EXPORT(tile_product);

LinearLayout tile_product_layout(const ProductParams& params, int threads) {
  return HWY_DYNAMIC_DISPATCH(tile_product_sizes)(params, threads);
}

void tile_product_block(const ProductParams& params, const LinearLayout& layout, int64_t first_row,
                        int64_t first_column, void* scratch) {
  HWY_DYNAMIC_DISPATCH(tile_product)(params, layout, first_row, first_column, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
