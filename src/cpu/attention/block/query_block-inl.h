// A block of query rows, which the forward kernel multiplies with one key block after the other:
// the state that all parts of the kernel share, which queries and heads the rows are, and which
// keys they see.
//
//   products-inl.h, tile_products-inl.h   how Q, K and V are multiplied
//   loading-inl.h   Q transposed, K and V in the form that the products read
//   scores-inl.h    scores of a panel of rows against a block of keys, and the passes over them
//   epilogue-inl.h  normalized rows, LSE and dropout mask to memory
//   captures-inl.h  captured scores and weights, and rows that are recomputed with masks
//
// All of these have internal linkage, so that compilers inline functions with a single caller.
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_QUERY_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_QUERY_BLOCK_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_QUERY_BLOCK_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_QUERY_BLOCK_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/amx/tile_product.h"
#include "cpu/attention/block/prefetch-inl.h"
#include "cpu/attention/block/score_passes-inl.h"
#include "cpu/attention/block/softmax-inl.h"
#include "cpu/kernels.h"
#include "cpu/simd/file_namespace.h"
#include "cpu/simd/simd-inl.h"
#include "cpu/simd/stored_rows-inl.h"
#include "cpu/simd/tile_size.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

inline size_t score_lanes() { return TileSize::kScoreVecs * hn::Lanes(DF()); }
inline size_t strip_lanes() { return TileSize::kMaxVecs * hn::Lanes(DF()); }
inline size_t panel_lanes() { return TileSize::kPanelVecs * hn::Lanes(DF()); }

// Arrays of a block in its scratch memory.
struct BlockScratch {
  float* queries;           // [lanes of a vector][d_k] before the transpose, if Q is not f32
  float* query;             // [lanes of a vector][d_k] before they are transposed, if not f32
  float* scores;            // [key block][lanes of a panel]
  float* out;               // [row][value_lanes], not yet normalized
  float* out_columns;       // [panel][value_lanes][panel_lanes()] `out` for products of tiles
  float* keys;              // [key block][d_k], if K is not dense f32
  float* values;            // [strip][key block][strip_lanes()], if V is copied
  float* value;             // [d_v] one row of V before it is copied, if V is not f32
  float* row_max;           // [row] largest score so far (running max)
  float* reference;         // [row] score that row_sum and out are relative to
  float* row_sum;           // [row] sum of exp(score - reference)
  float* block_sum;         // [row] sum of one key block's weights, if exp is fused into Q K^T
  float* correction;        // [row] rescale factor of row_sum and out
  float* nan;               // vector of flags: lanes where an output was NaN
  float* block_reference;   // [key block][row] reference of the captured weights
  int32_t* first_key;       // [row] first visible key
  int32_t* last_key;        // [row] end of the visible keys
  RowPlace* place;          // [row]
  float* alibi_slope;       // [row]
  int32_t* alibi_position;  // [row] position of the query among the keys
  const uint8_t** mask;     // [row] mask of the row at key 0
  const float** bias;       // [row] bias of the row at key 0
  uint8_t* needs_masked_recompute;  // [row] true if hidden values may have changed the output
  uint64_t bytes;
};

// Elements from one column of transposed values to the next, for a block of `keys`: a tile that
// begins at the last key reads zeros after it.
inline size_t tile_value_stride(size_t keys) { return round_up(keys, kTileDepth) + kTileDepth; }

// The WebAssembly module keeps one copy for this file and scratch.cc, if it is not inlined.
[[maybe_unused]] HWY_NOINLINE BlockScratch lay_out_block(const AttentionParams& p,
                                                         const BlockTiling& g, void* memory) {
  const auto rows = static_cast<uint64_t>(g.rows);
  // Room for the longest block. Sequences longer than kKeyBlock all need the same size.
  const auto keys = std::min<uint64_t>(static_cast<uint64_t>(TileSize::kKeyBlock),
                                       round_up(static_cast<size_t>(p.keys), 8));
  // Rows that a tile reads after the last key.
  const uint64_t tile_rows = g.tiles ? kTileSide : 0;
  const uint64_t head_dim = round_up(static_cast<size_t>(p.head_dim), g.tiles ? kTileDepth : 1);
  const auto value_dim = static_cast<uint64_t>(p.value_dim);
  const uint64_t vector = hn::Lanes(DF());
  const uint64_t value_lanes = round_up(static_cast<size_t>(p.value_dim), vector);

  BlockScratch s{};
  rules::Arena take(memory);
  take(s.queries, round_up(rows, score_lanes()) * head_dim);
  take(s.query, p.q.dense_floats() && !g.tiles ? 0 : vector * head_dim);
  take(s.scores, (keys + tile_rows) * std::min<uint64_t>(rows, panel_lanes()));
  take(s.out, rows * value_lanes);
  take(s.out_columns, g.tiles ? round_up(rows, panel_lanes()) * value_lanes : 0);
  take(s.keys, p.k.dense_floats() && !g.tiles ? 0 : (keys + tile_rows) * head_dim);
  // Products of tiles need half the bytes per number, and zeros after the last key.
  take(s.values, std::max(g.copies_values ? keys * round_up(value_lanes, strip_lanes()) : 0,
                          g.tiles ? value_lanes * tile_value_stride(keys) / 2 : 0));
  take(s.value, std::max(g.copies_values && !p.v.dense_floats() ? value_dim : 0,
                         g.tiles ? value_lanes * kTileDepth / 2 : 0));
  take(s.row_max, rows);
  take(s.reference, rows);
  take(s.row_sum, rows);
  take(s.block_sum, TileSize::kFuseExpIntoQK ? rows : 0);
  take(s.correction, rows);
  take(s.nan, vector);
  take(s.block_reference,
       p.captures_weights() ? static_cast<uint64_t>(g.key_blocks) * rows : uint64_t{0});
  take(s.first_key, rows);
  take(s.last_key, rows);
  take(s.place, rows);
  take(s.alibi_slope, p.alibi_slopes != nullptr ? rows : 0);
  take(s.alibi_position, p.alibi_slopes != nullptr ? rows : 0);
  take(s.mask, p.mask.given() ? rows : 0);
  take(s.bias, p.bias.given() ? rows : 0);
  take(s.needs_masked_recompute, rows);
  s.bytes = take.bytes();
  return s;
}

// Rows whose scores against a key block are computed, turned into weights and multiplied by V
// before the next panel is started.
struct Panel {
  size_t lane;               // first lane within the block
  size_t lanes, rows;        // with padding, without padding
  rules::KeyRange keys;      // keys that at least one of its rows sees
  rules::KeyRange unmasked;  // keys that all of its rows see
  bool transposed;           // true if its queries are in scratch
  bool started;              // true if its output holds a sum
};

// Rows of V. Column c is in strip c / strip_lanes().
struct Values {
  const float* data;
  ptrdiff_t stride, strip;

  float at(size_t row, size_t column) const {
    const float* from = data + static_cast<ptrdiff_t>(row) * stride;
    return from[static_cast<ptrdiff_t>(column / strip_lanes()) * strip +
                static_cast<ptrdiff_t>(column % strip_lanes())];
  }
};

template <class Products>
struct KeyBlock {
  rules::KeyRange keys;
  const typename Products::Key* k;  // row 0 is key keys.first
  ptrdiff_t k_stride;
  Values v;
};

// For each vector of lanes, the end of the keys of a tile that are visible to the vector. The ends
// rise with the vector.
using VisibleEnds = std::array<size_t, TileSize::kPanelVecs>;

inline rules::KeyRange intersection(const rules::KeyRange& a, const rules::KeyRange& b) {
  return {std::max(a.first, b.first), std::min(a.last, b.last)};
}

template <class Products>
struct QueryBlock {
  QueryBlock(const AttentionParams& params, const BlockTiling& tiling, const BlockJob& job,
             void* scratch)
      : p(params),
        g(tiling),
        batch(job.batch),
        kv_head(job.kv_head),
        first_row(job.first_row),
        s(lay_out_block(params, tiling, scratch)),
        scale(Products::scale_factors(params)),
        softmax(scale.softmax),
        vector(hn::Lanes(d)),
        rows(std::min(static_cast<size_t>(tiling.rows),
                      static_cast<size_t>(params.end_row() - job.first_row))),
        lanes(round_up(rows, vector)),
        // V is not read if no output is requested.
        value_lanes(params.out.data == nullptr
                        ? 0
                        : round_up(static_cast<size_t>(params.value_dim), vector)),
        captures_weights(params.captures_weights()) {}

  int64_t first_head() const { return kv_head * p.group(); }
  int64_t head_of(size_t row) const { return first_head() + s.place[row].head_in_group; }
  // Length of a row of Q or K, in elements of the products.
  size_t depth() const { return Products::depth(static_cast<size_t>(p.head_dim)); }
  // True if no pass changes or hides individual scores.
  bool plain() const { return !p.changes_scores() && !p.mask.given() && scale.scores == 1.0F; }

  std::span<Panel> panels() { return {all_panels.data(), panel_count}; }
  std::span<const Panel> panels() const { return {all_panels.data(), panel_count}; }

  const AttentionParams& p;
  const BlockTiling& g;
  const int64_t batch;
  int64_t kv_head;
  const int64_t first_row;
  const BlockScratch s;
  const rules::ScaleFactors scale;
  const SoftmaxFactor softmax;
  const DF d;
  const size_t vector;  // lanes per vector
  const size_t rows, lanes;
  const size_t value_lanes;
  const bool captures_weights;
  rules::KeyRange seen;  // keys that at least one row of the block sees
  std::array<Panel, TileSize::kBlockPanels> all_panels;
  size_t panel_count = 0;
  PrefetchedRows prefetched;
  size_t lines_per_score_tile = 0, lines_per_value_tile = 0;  // lines to prefetch
};

// Sets the values that all heads of a job share.
template <class Products>
void load_rows(QueryBlock<Products>& b) {
  const rules::EntryVisibility visibility = b.p.visibility.entry(b.batch);
  const int64_t group = b.p.group();
  int64_t query = b.first_row / group;
  int64_t head_in_group = b.first_row % group;
  for (size_t row = 0; row < b.lanes; ++row) {
    b.s.place[row] = {static_cast<int32_t>(head_in_group), static_cast<int32_t>(query)};
    // Padding lanes repeat the last row.
    if (row + 1 < b.rows && ++head_in_group == group) {
      head_in_group = 0;
      ++query;
    }
  }
  int32_t* const first_key = b.s.first_key;
  int32_t* const last_key = b.s.last_key;
  const auto set_range = [&](size_t row) {
    const rules::KeyRange range = visibility.seen_by(b.s.place[row].query);
    first_key[row] = static_cast<int32_t>(std::min(range.first, b.p.keys));
    last_key[row] = static_cast<int32_t>(range.last);
  };
  HWY_DASSERT(b.rows > 0 && b.lanes <= TileSize::kBlockPanels * panel_lanes());
  const size_t last_lane = b.lanes - 1;
  set_range(0);
  set_range(last_lane);
  // Both ends rise with the query: if the first and last rows have equal ranges, so do all rows
  // between. Setting each row separately took 1 % of bert.
  if (first_key[0] == first_key[last_lane] && last_key[0] == last_key[last_lane]) {
    std::fill_n(first_key, b.lanes, first_key[0]);
    std::fill_n(last_key, b.lanes, last_key[0]);
  } else {
    for (size_t row = 1; row < last_lane; ++row) set_range(row);
  }
  b.seen = {first_key[0], last_key[b.rows - 1]};
  for (size_t lane = 0; lane < b.lanes; lane += panel_lanes()) {
    const size_t rows = std::min(panel_lanes(), b.rows - lane);
    const size_t last = lane + rows - 1;
    b.all_panels[b.panel_count++] = {.lane = lane,
                                     .lanes = std::min(panel_lanes(), b.lanes - lane),
                                     .rows = rows,
                                     .keys = {first_key[lane], last_key[last]},
                                     .unmasked = {first_key[last], last_key[lane]},
                                     .transposed = false,
                                     .started = false};
  }
}

// Initializes the state of one head, before its first key.
template <class Products>
void start_head(QueryBlock<Products>& b) {
  std::fill_n(b.s.row_max, b.lanes, kNegInf);
  std::fill_n(b.s.reference, b.lanes, kNegInf);
  std::fill_n(b.s.row_sum, b.lanes, 0.0F);
  for (Panel& panel : b.panels()) panel.transposed = panel.started = false;
  hn::StoreU(hn::Zero(b.d), b.d, b.s.nan);
  if (b.p.mask.given()) {
    for (size_t row = 0; row < b.lanes; ++row) {
      b.s.mask[row] = b.p.mask.row(b.batch, b.head_of(row), b.s.place[row].query);
    }
  }
  if (b.p.bias.given()) {
    for (size_t row = 0; row < b.lanes; ++row) {
      b.s.bias[row] = b.p.bias.row(b.batch, b.head_of(row), b.s.place[row].query);
    }
  }
  if (b.p.alibi_slopes != nullptr) {
    const int64_t shift = b.p.visibility.alibi_shift(b.batch);
    for (size_t row = 0; row < b.lanes; ++row) {
      b.s.alibi_slope[row] = b.p.alibi_slopes[b.head_of(row)];
      b.s.alibi_position[row] = static_cast<int32_t>(b.s.place[row].query + shift);
    }
  }
}

template <class Products>
bool sees_key(const QueryBlock<Products>& b, size_t row, int64_t key) {
  return key >= b.s.first_key[row] && key < b.s.last_key[row] &&
         (!b.p.mask.given() || b.s.mask[row][key * b.p.mask.stride[3]] != 0) &&
         (!b.p.bias.given() || b.s.bias[row][key * b.p.bias.stride[3]] != kNegInf);
}

template <class Products>
bool sees_a_key(const QueryBlock<Products>& b, size_t row) {
  for (int64_t key = b.s.first_key[row]; key < b.s.last_key[row]; ++key) {
    if (sees_key(b, row, key)) return true;
  }
  return false;
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_QUERY_BLOCK_INL_H_
