// Forward attention of one block of query rows.
//
// The order of FlashAttention-2 (Dao, arXiv:2307.08691): a block of queries is multiplied with one
// key block after the other, and keeps the reference and sum of its softmax and its unnormalized
// output. Scores are kept transposed, with queries in the vector lanes:
//
//   Qt[d][query]      the block's queries, transposed once
//   St[key][query]  = sum over d of K[key][d] * Qt[d][query]         broadcast K, vector Qt
//   online softmax    every lane its own query: no horizontal maximum or sum anywhere
//   O[query][:]    += sum over keys of St[key][query] * V[key][:]    broadcast St, vector V
//
// K and V are read in place, V from a copy if that is faster. A block is divided into panels: the
// scores of one panel against a key block stay in the nearer caches, and all panels share the key
// block. Of the scores that causal order hides, only those in vectors and tiles at its edge are
// computed.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/preconditions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/attention/forward/forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
//
#include "cpu/attention/block/query_block-inl.h"
#include "cpu/attention/block/scores-inl.h"
#include "cpu/attention/forward/epilogue-inl.h"
#include "cpu/attention/forward/short_heads-inl.h"
#include "cpu/attention/forward/tile_products-inl.h"
#include "cpu/gemm/micro_kernel-inl.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
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

// Number of floats of K and V that fit in the first-level cache. Up to this size nothing is
// prefetched.
constexpr int64_t kSmall = 2048;

// Runs the online softmax over all keys of one head, if any output needs it.
template <class Products>
void compute(QueryBlock<Products>& b, const BlockJob* next) {
  start_head(b);
  const bool is_small = b.p.keys * (b.p.head_dim + b.p.value_dim) <= kSmall;
  if (kPrefetches && !Products::kTiles && !is_small) prefetch_next(b, next);
  if (!b.p.needs_softmax()) return;
  for_weight_captures(b, [&](const ScoreCapture& capture) { fill_unvisited(b, capture); });
  float* block_reference = b.s.block_reference;
  for_key_blocks(b, b.seen, [&](const KeyBlock<Products>& block) HWY_ATTR {
    for (Panel& panel : b.panels()) {
      const rules::KeyRange keys = intersection(block.keys, panel.keys);
      if (!keys.empty() && !mask_hides_tile(b, panel, keys)) mainloop_step(b, panel, keys, block);
    }
    if (b.captures_weights) block_reference = std::copy_n(b.s.reference, b.lanes, block_reference);
  });
  for (const Panel& panel : b.panels()) {
    if (panel.started) {
      if constexpr (Products::kTiles) transpose_output(b, panel);
      continue;
    }
    std::fill_n(b.s.out + panel.lane * b.value_lanes, panel.lanes * b.value_lanes, 0.0F);
  }
}

// Writes the outputs other than `out`.
template <class Products>
void store_others(QueryBlock<Products>& b) {
  if (b.p.lse.data != nullptr) store_lse(b);
  if (b.p.dropout_mask.data != nullptr) store_dropout_mask(b);
}

void forward_head(QueryBlock<F32Products>& b, const BlockJob* next) {
  compute(b, next);
  if (b.p.needs_softmax() && !normalize_and_store(b)) recompute_masked(b);
  store_others(b);
  for (const ScoreCapture& capture : b.p.captures) {
    if (capture.stage != ScoreStage::kWeights) store_capture(b, capture);
  }
  if (b.captures_weights) finish_weights(b);
}

void forward(const AttentionParams& params, const BlockTiling& tiling, const BlockJob& job,
             const BlockJob* next, void* scratch) {
  QueryBlock<F32Products> b(params, tiling, job, scratch);
  load_rows(b);
  for (; b.kv_head < job.end_head; ++b.kv_head) forward_head(b, next);
}

// Returns the job restricted to one of its heads.
BlockJob job_of_head(const BlockJob& job, int64_t kv_head) {
  return {
      .batch = job.batch, .kv_head = kv_head, .end_head = kv_head + 1, .first_row = job.first_row};
}

// Runs a head with products of bf16. Returns false if the head needs f32 products.
template <class Products>
bool forward_bf16_head(const AttentionParams& params, const BlockTiling& tiling,
                       const BlockJob& head, const BlockJob* next, void* scratch) {
  QueryBlock<Products> b(params, tiling, head, scratch);
  load_rows(b);
  compute(b, next);
  if constexpr (Products::kTiles) {
    if (has_undefined_row(b)) return false;
  }
  // A masked recompute needs f32 scores.
  if (b.p.needs_softmax() && !normalize_and_store(b)) return false;
  store_others(b);
  return true;
}

template <class Products>
void forward_bf16_heads(const AttentionParams& params, const BlockTiling& tiling,
                        const BlockJob& job, const BlockJob* next, void* scratch) {
  for (int64_t kv_head = job.kv_head; kv_head < job.end_head; ++kv_head) {
    const BlockJob head = job_of_head(job, kv_head);
    if (forward_bf16_head<Products>(params, tiling, head, next, scratch)) continue;
    forward(params, tiling, head, next, scratch);
  }
}

void forward_bf16([[maybe_unused]] const AttentionParams& params,
                  [[maybe_unused]] const BlockTiling& tiling, [[maybe_unused]] const BlockJob& job,
                  [[maybe_unused]] const BlockJob* next, [[maybe_unused]] void* scratch) {
#if MULTIHEAD_HAS_BF16_PAIRS
  forward_bf16_heads<Bf16PairProducts>(params, tiling, job, next, scratch);
#endif
}

void forward_tiles([[maybe_unused]] const AttentionParams& params,
                   [[maybe_unused]] const BlockTiling& tiling, [[maybe_unused]] const BlockJob& job,
                   [[maybe_unused]] const BlockJob* next, [[maybe_unused]] void* scratch) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const TileSession session(*tile_unit());
  forward_bf16_heads<TileProducts>(params, tiling, job, next, scratch);
#endif
}

void forward_short(const AttentionParams& params, const BlockTiling& tiling, const BlockJob& job,
                   void* scratch) {
  ShortHeads heads(params, tiling, job, scratch);
  for (int64_t kv_head = job.kv_head; kv_head < job.end_head; ++kv_head) {
    if (heads.compute(kv_head)) continue;
    forward(params, tiling, job_of_head(job, kv_head), nullptr, scratch);
    heads.load_rows();
  }
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::cpu {

HWY_EXPORT(forward);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(forward_tiles);
HWY_EXPORT(forward_short);

void forward_block(const AttentionParams& params, const BlockTiling& tiling, const BlockJob& job,
                   const BlockJob* next, void* scratch) {
  require_block(params, tiling, job, scratch);
  HWY_DYNAMIC_DISPATCH(forward)(params, tiling, job, next, scratch);
}

void forward_bf16_block(const AttentionParams& params, const BlockTiling& tiling,
                        const BlockJob& job, const BlockJob* next, void* scratch) {
  require_block(params, tiling, job, scratch);
  HWY_DYNAMIC_DISPATCH(forward_bf16)(params, tiling, job, next, scratch);
}

void forward_tile_block(const AttentionParams& params, const BlockTiling& tiling,
                        const BlockJob& job, const BlockJob* next, void* scratch) {
  require_block(params, tiling, job, scratch);
  HWY_DASSERT(tiling.tiles && tile_unit() != nullptr);
  HWY_DYNAMIC_DISPATCH(forward_tiles)(params, tiling, job, next, scratch);
}

void forward_short_heads(const AttentionParams& params, const BlockTiling& tiling,
                         const BlockJob& job, void* scratch) {
  require_block(params, tiling, job, scratch);
  HWY_DYNAMIC_DISPATCH(forward_short)(params, tiling, job, scratch);
}

}  // namespace multihead::cpu
#endif  // HWY_ONCE
