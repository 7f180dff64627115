// Products of attention in tiles of bf16 (AMX): a policy like the ones in query_block-inl.h. Scores
// are transposed, as with the other policies, so the passes over them are shared:
//
//   St[key][query] = K Qt      A: rows of K, B: the transposed queries in pairs
//   Ot[column][query] += Vt P  A: V transposed, B: the weights in pairs
//
// The weights of two keys become a pair in place, without a shuffle. V is transposed once for each
// key block of a block of rows, and the output once at the end.
#if defined(MULTIHEAD_CPU_ATTENTION_FORWARD_TILE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_FORWARD_TILE_PRODUCTS_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_FORWARD_TILE_PRODUCTS_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_FORWARD_TILE_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/amx/amx.h"
#include "cpu/attention/block/query_block-inl.h"
#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "hwy/highway.h"

// Every processor with AMX has AVX-512. A 512-bit vector is one row of a tile.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

struct TileProducts {
  using Key = uint16_t;
  static constexpr size_t kUnit = 2;
  static constexpr bool kTiles = true;

  struct Keys {
    const uint16_t* data;
    ptrdiff_t stride;
  };

  static size_t depth(size_t width) { return round_up(width, kTileDepth) / kUnit; }

  // Queries are not scaled, which would round them. The softmax applies the scale. A separate pass
  // scales the scores if another pass changes them or the scale is outside [2^-10, 2^10].
  static rules::ScaleFactors scale_factors(const AttentionParams& p) {
    constexpr float kLeast = 0x1p-10F, kMost = 0x1p10F;
    const float scale = p.scale.queries * p.scale.scores * p.scale.softmax;
    if (p.changes_scores() || scale < kLeast || scale > kMost) return {1.0F, scale, 1.0F};
    return {1.0F, 1.0F, scale};
  }
  static HWY_INLINE void transpose_queries(DF d, const uint16_t* const* rows, size_t depth, float,
                                           float* to, size_t stride) {
    transpose_pairs(d, rows, depth, to, stride);
  }
  // Reads row i of a vector of queries.
  static HWY_INLINE const uint16_t* read_query(DF d, const AttentionParams& p, int64_t batch,
                                               int64_t head, int64_t query, size_t i,
                                               float* scratch) {
    const auto width = static_cast<size_t>(p.head_dim);
    const size_t padded = round_up(width, kTileDepth);
    auto* const to = reinterpret_cast<uint16_t*>(scratch) + i * padded;
    read_bf16_row(d, p.q, batch, head, query, width, padded, to);
    return to;
  }
  // Returns K in place if its rows are whole tiles and the last tile ends at an existing key,
  // otherwise a copy.
  static HWY_INLINE Keys keys(DF d, const AttentionParams& p, int64_t batch, int64_t head,
                              int64_t first, size_t count, float* scratch) {
    const auto width = static_cast<size_t>(p.head_dim);
    const size_t padded = round_up(width, kTileDepth);
    const auto end = first + static_cast<int64_t>(count);
    if (p.k.type == DType::kBF16 && p.k.in_order() && width == padded && width != 0 &&
        p.k.stride[2] > 0 &&
        end + static_cast<int64_t>(kTileSide) - 1 <= p.visibility.present(batch).last) {
      return {static_cast<const uint16_t*>(p.k.data) + row_offset(p.k.stride, batch, head, first),
              static_cast<ptrdiff_t>(p.k.stride[2])};
    }
    auto* to = reinterpret_cast<uint16_t*>(scratch);
    for (int64_t key = first; key < end; ++key, to += padded) {
      read_bf16_row(d, p.k, batch, head, key, width, padded, to);
    }
    std::fill_n(to, (kTileSide - 1) * padded, uint16_t{0});
    return {reinterpret_cast<const uint16_t*>(scratch), static_cast<ptrdiff_t>(padded)};
  }
  // Copies rows first .. first + count - 1 of V, transposed, followed by zeros for one tile of
  // keys. `staged` has room for kTileDepth rows.
  static void copy_values(DF d, const AttentionParams& p, int64_t batch, int64_t head,
                          int64_t first, size_t count, float* to, float* staged) {
    const auto width = static_cast<size_t>(p.value_dim);
    const size_t columns = round_up(width, kTileSide);
    const size_t stride = tile_value_stride(count);
    auto* const scratch = reinterpret_cast<uint16_t*>(staged);
    const bool in_place = p.v.type == DType::kBF16 && width == columns;
    std::array<const uint16_t*, kTileDepth> rows;
    for (size_t from = 0; from < stride; from += kTileDepth) {
      for (size_t i = 0; i < kTileDepth; ++i) {
        uint16_t* const row = scratch + i * columns;
        const int64_t key = first + static_cast<int64_t>(from + i);
        rows[i] = row;
        if (from + i >= count) {
          std::fill_n(row, columns, uint16_t{0});
        } else if (in_place) {
          rows[i] = static_cast<const uint16_t*>(p.v.data) +
                    row_offset(p.v.stride, p.v.pages == nullptr ? batch : 0, head,
                               slot_of(p.v, batch, key));
        } else {
          read_bf16_row(d, p.v, batch, head, key, width, columns, row);
        }
      }
      transpose_halves(d, rows.data(), columns, reinterpret_cast<uint16_t*>(to) + from, stride);
    }
  }

  // Computes `keys` rows of scores for `vecs` vectors of queries. Also writes the remaining rows of
  // the last tile.
  static void multiply_scores(DF d, const Product<uint16_t>& p, size_t keys, size_t vecs) {
    tile_unit()->multiply({.a = p.a,
                           .a_row = static_cast<size_t>(p.a_stride) * sizeof(uint16_t),
                           .b = p.b,
                           .b_row = static_cast<size_t>(p.b_stride) * sizeof(float),
                           .c = p.c,
                           .c_row = static_cast<size_t>(p.c_stride) * sizeof(float),
                           .row_tiles = ceil_div(keys, kTileSide),
                           .column_tiles = vecs,
                           .depth_tiles = p.depth * kUnit / kTileDepth});
    if (p.column_max == nullptr) return;
    for (size_t v = 0; v < vecs; ++v) {
      raise_row_max(d, p.c + v * kTileSide, static_cast<size_t>(p.c_stride), keys,
                    p.column_max + v * kTileSide);
    }
  }
};

// Address of the output for a row, in the transposed output of its panel.
inline float* out_columns_of(const QueryBlock<TileProducts>& b, size_t row) {
  const size_t lane = row % panel_lanes();
  return b.s.out_columns + (row - lane) * b.value_lanes + lane;
}

// Ot (+)= Vt P, for two vectors of queries at a time.
inline void accumulate_tiles(const QueryBlock<TileProducts>& b, const Panel& panel,
                             const ScoreTile& tile, const KeyBlock<TileProducts>& block,
                             const VisibleEnds& visible_end) {
  const size_t vectors = panel.lanes / b.vector;
  const auto* const values = reinterpret_cast<const uint16_t*>(block.v.data);
  for (size_t v = 0; v < vectors; v += 2) {
    const size_t count = std::min<size_t>(2, vectors - v);
    const size_t keys = round_up(std::max(visible_end[v], visible_end[v + count - 1]), kTileDepth);
    float* const weights = tile.scores + v * b.vector;
    for (size_t i = 0; i < count; ++i) {
      const size_t end = visible_end[v + i];
      float* const lanes = weights + i * b.vector;
      pair_weights(b.d, lanes, tile.stride, end);
      for (size_t pair = (end + 1) / 2; pair < keys / 2; ++pair) {
        hn::StoreU(hn::Zero(b.d), b.d, lanes + pair * tile.stride);
      }
    }
    tile_unit()->multiply({.a = values + (tile.first_key - block.keys.first),
                           .a_row = static_cast<size_t>(block.v.stride) * sizeof(uint16_t),
                           .b = weights,
                           .b_row = tile.stride * sizeof(float),
                           .c = out_columns_of(b, panel.lane + v * b.vector),
                           .c_row = panel_lanes() * sizeof(float),
                           .row_tiles = b.value_lanes / kTileSide,
                           .column_tiles = count,
                           .depth_tiles = keys / kTileDepth,
                           .accumulate = panel.started});
  }
}

// Multiplies the output of one vector of rows by `correction`.
inline void rescale_columns(const QueryBlock<TileProducts>& b, size_t first) {
  const auto factor = hn::LoadU(b.d, b.s.correction + first);
  float* at = out_columns_of(b, first);
  for (size_t c = 0; c < b.value_lanes; ++c, at += panel_lanes()) {
    hn::StoreU(hn::Mul(hn::LoadU(b.d, at), factor), b.d, at);
  }
}

// Transposes the output of a panel to rows.
inline void transpose_output(const QueryBlock<TileProducts>& b, const Panel& panel) {
  std::array<float*, kTileSide> rows;
  for (size_t lane = 0; lane < panel.lanes; lane += b.vector) {
    const size_t first = panel.lane + lane;
    for (size_t i = 0; i < kTileSide; ++i) rows[i] = b.s.out + (first + i) * b.value_lanes;
    transpose_back(b.d, out_columns_of(b, first), panel_lanes(), b.value_lanes, rows.data(),
                   [](auto value) HWY_ATTR { return value; });
  }
}

// True if the softmax of a row is undefined. The scale is applied after the product, so scores may
// have overflowed although the scaled scores would be in range.
inline bool has_undefined_row(const QueryBlock<TileProducts>& b) {
  for (size_t row = 0; row < b.rows; ++row) {
    const float sum = b.s.row_sum[row];
    if (std::isnan(sum) || (sum == 0.0F && sees_a_key(b, row))) return true;
  }
  return false;
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // MULTIHEAD_CPU_ATTENTION_FORWARD_TILE_PRODUCTS_INL_H_
