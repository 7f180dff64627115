// The main loop of the forward kernel: scores of a tile, online softmax, weights times V.
#if defined(MULTIHEAD_CPU_ATTENTION_FORWARD_MAINLOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_FORWARD_MAINLOOP_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_FORWARD_MAINLOOP_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_FORWARD_MAINLOOP_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/attention/block/loading-inl.h"
#include "cpu/attention/block/query_block-inl.h"
#include "cpu/attention/block/scores-inl.h"
#include "cpu/attention/forward/captures-inl.h"
#include "cpu/attention/forward/epilogue-inl.h"
#include "cpu/attention/forward/tile_products-inl.h"
#include "cpu/gemm/micro_kernel-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Rescales the output of one vector of rows whose reference has risen.
template <class Products>
void rescale_rows(const QueryBlock<Products>& b, size_t first) {
  if constexpr (Products::kTiles) return rescale_columns(b, first);
  for (size_t row = first; row < first + b.vector; ++row) {
    if (b.s.correction[row] != 1.0F) scale_out_row(b, row, b.s.correction[row]);
  }
}

// Sets weights to 0 that a tile of rows reads but that were not computed: a tile that spans two
// vectors reads weights up to the visible end of the second vector, beyond the end of the first.
template <class Products>
void clear_beyond_visible(const QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile,
                          const VisibleEnds& visible_end) {
  constexpr size_t kRows = TileSize::rows(TileSize::kMaxVecs);
  const size_t vectors = panel.lanes / b.vector;
  for (size_t v = 0; v < vectors; ++v) {
    const size_t beside = std::min(((v + 1) * b.vector + kRows - 2) / b.vector, vectors - 1);
    const size_t end = b.p.dropout.given() ? tile.keys : visible_end[beside];
    for (size_t key = visible_end[v]; key < end; ++key) {
      hn::StoreU(hn::Zero(b.d), b.d, tile.scores + key * tile.stride + v * b.vector);
    }
  }
}

// out (+)= weights * V. If tiling.stores_normalized, the panel's last key block also normalizes
// the rows and stores them.
template <class Products>
void accumulate_pv(QueryBlock<Products>& b, const Panel& panel, const ScoreTile& tile,
                   const KeyBlock<Products>& block) {
  Product<> p{.a = tile.scores,
              .a_stride = static_cast<ptrdiff_t>(tile.stride),
              .b = block.v.data + (tile.first_key - block.keys.first) * block.v.stride,
              .b_stride = block.v.stride,
              .b_strip = block.v.strip,
              .c = b.s.out + panel.lane * b.value_lanes,
              .c_stride = static_cast<ptrdiff_t>(b.value_lanes),
              .depth = tile.keys,
              .accumulate = panel.started};
  if (b.g.stores_normalized && block.keys.last >= panel.keys.last) {
    invert_sums(b, panel);
    p.normalized = {.to = out_row<float>(b, panel.lane),
                    .stride = static_cast<ptrdiff_t>(b.p.out.stride[2]),
                    .factor = b.s.correction + panel.lane,
                    .nan = b.s.nan};
  }
  const int32_t* const last_key = b.s.last_key + panel.lane;
  product<ALayout::kColMajor, typename Products::Arithmetic>(
      b.d, p, panel.rows, b.value_lanes / b.vector, [&](size_t row, size_t rows) HWY_ATTR {
        if (kPrefetches) b.prefetched.ask(b.lines_per_value_tile);
        const int64_t seen = last_key[row + rows - 1] - tile.first_key;
        const auto keys =
            static_cast<size_t>(std::clamp<int64_t>(seen, 0, static_cast<int64_t>(tile.keys)));
        return (keys + Products::kUnit - 1) / Products::kUnit;
      });
}

// One step of the main loop: attention of a panel over the visible keys of a key block.
template <class Products>
void mainloop_step(QueryBlock<Products>& b, Panel& panel, const rules::KeyRange& keys,
                   const KeyBlock<Products>& block) {
  transpose_queries(b, panel);
  const ScoreTile tile = tile_of(b, panel, keys);
  const VisibleEnds visible_end = visible_ends(b, panel, tile);
  bool has_weights = false;
  if constexpr (TileSize::kFuseExpIntoQK) {
    const bool sees_all = keys.first >= panel.unmasked.first && keys.last <= panel.unmasked.last;
    has_weights = sees_all && panel.started && b.plain() && score_fused(b, panel, tile, block);
  }
  if (!has_weights) score_visible(b, panel, tile, block, visible_end);
  for (size_t v = 0; !has_weights && v * b.vector < panel.lanes; ++v) {
    if (visible_end[v] == 0) continue;
    const size_t lane = v * b.vector;
    const size_t row = panel.lane + lane;
    const bool rose = online_softmax(b.d, tile.scores + lane, tile.stride, visible_end[v],
                                     b.softmax, b.s.row_max + row, b.s.reference + row,
                                     b.s.row_sum + row, b.s.correction + row);
    if (rose && panel.started) rescale_rows(b, row);
  }
  if (b.captures_weights) store_weights(b, panel, tile, visible_end);
  if (b.value_lanes != 0) {
    if constexpr (!Products::kTiles) clear_beyond_visible(b, panel, tile, visible_end);
    if (b.p.dropout.given()) {
      drop_weights(b.d, tile, b.s.place + panel.lane, b.p.first, b.batch, b.first_head(),
                   b.p.dropout);
    }
    if constexpr (Products::kTiles) {
      accumulate_tiles(b, panel, tile, block, visible_end);
    } else {
      // A tile of as many rows as a vector has lanes, or fewer, reads no weights beyond its
      // vector's end. A taller one (ARM64) reads up to the end of the next vector, where they are
      // 0.
      constexpr bool kSpansVectors = hn::MaxLanes(DF()) % TileSize::rows(1) != 0;
      for (size_t v = 0; v * b.vector < panel.lanes; ++v) {
        const bool has_next = kSpansVectors && (v + 1) * b.vector < panel.lanes;
        Products::convert_weights(b.d, tile.scores + v * b.vector, tile.stride,
                                  visible_end[has_next ? v + 1 : v]);
      }
      accumulate_pv(b, panel, tile, block);
    }
  }
  panel.started = true;
}

}  // namespace
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_FORWARD_MAINLOOP_INL_H_
