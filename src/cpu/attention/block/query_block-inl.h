// A block of query rows of the forward kernel, and its operands in the form that the products read.
//
//   tile_products-inl.h   products of tiles of bf16
//   scores-inl.h    scores of a panel of rows against a block of keys, and the passes over them
//   epilogue-inl.h  normalized rows, LSE, dropout mask and captures to memory, and rows that are
//                   recomputed with masks
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
#include <type_traits>

#include "cpu/amx/amx.h"
#include "cpu/attention/block/prefetch-inl.h"
#include "cpu/attention/block/score_passes-inl.h"
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

// ---- Policies for the two products of attention: floats, pairs of bf16, or tiles of bf16
// (tile_products-inl.h). A policy defines how elements are multiplied, how queries and values are
// stored, and how many numbers of a row form one element (kUnit).

struct F32Products {
  using Arithmetic = F32Arithmetic;
  using Key = float;  // type of an element of K in the product
  static constexpr size_t kUnit = 1;
  static constexpr bool kTiles = false;  // true if the products compute whole tiles

  // Length of a row of Q or K, in elements of the products.
  static size_t depth(size_t width) { return width; }

  static rules::ScaleFactors scale_factors(const AttentionParams& p) { return p.scale; }

  static HWY_INLINE void transpose_queries(DF d, const float* const* rows, size_t depth,
                                           float factor, float* to, size_t stride) {
    transpose_rows(d, rows, depth, factor, to, stride);
  }
  // Returns K in place if it is dense floats, otherwise converted to floats in `scratch`.
  static HWY_INLINE FloatRows keys(DF d, const AttentionParams& p, int64_t batch, int64_t head,
                                   int64_t first, size_t count, float* scratch) {
    const auto width = static_cast<size_t>(p.head_dim);
    return read_rows(d, p.k, batch, head, first, count, width, width, scratch);
  }
  // Copies rows first .. first + count - 1 of V into strips. `row` is scratch for one row.
  static void copy_values(DF d, const AttentionParams& p, int64_t batch, int64_t head,
                          int64_t first, size_t count, float* to, ptrdiff_t strip, float* row) {
    const auto width = static_cast<size_t>(p.value_dim);
    if (p.v.dense_floats()) {
      const FloatRows rows = read_rows(d, p.v, batch, head, first, count, width, width, nullptr);
      copy_to_strips<TileSize::kMaxVecs>(d, rows, count, width, to, strip);
      return;
    }
    for (size_t i = 0; i < count; ++i, to += TileSize::kMaxVecs * hn::Lanes(d)) {
      const FloatRows rows =
          read_rows(d, p.v, batch, head, first + static_cast<int64_t>(i), 1, width, width, row);
      copy_to_strips<TileSize::kMaxVecs>(d, rows, 1, width, to, strip);
    }
  }
  // Does nothing: the weights stay floats in the product with V.
  static void convert_weights(DF, float*, size_t, size_t) {}
};

#if MULTIHEAD_HAS_BF16_PAIRS || (HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86)
// Converts one vector of lanes to bf16. Row i then holds the weights of keys 2i (lower half) and 2i
// + 1 (upper half), rounded to nearest, ties away from zero. A missing last weight is 0.
template <class D>
HWY_NOINLINE void pair_weights(D d, float* HWY_RESTRICT weights, size_t stride, size_t keys) {
  const hn::RebindToUnsigned<D> du;
  const auto half = hn::Set(du, 0x8000U);
  const auto upper = hn::Set(du, 0xFFFF0000U);
  for (size_t key = 0; key < keys; key += 2) {
    const float* from = weights + key * stride;
    const auto low = hn::Add(hn::BitCast(du, hn::LoadU(d, from)), half);
    auto pair = hn::ShiftRight<16>(low);
    if (key + 1 < keys) {
      const auto high = hn::Add(hn::BitCast(du, hn::LoadU(d, from + stride)), half);
      pair = hn::Or(pair, hn::And(high, upper));
    }
    hn::StoreU(hn::BitCast(d, pair), d, weights + key / 2 * stride);
  }
}

#endif

#if MULTIHEAD_HAS_BF16_PAIRS
// Products of bf16, read in place, two numbers at a time. Queries cannot be scaled, so the softmax
// applies the whole scale.
struct Bf16PairProducts {
  using Arithmetic = Bf16PairArithmetic;
  using Key = uint16_t;
  static constexpr size_t kUnit = 2;
  static constexpr bool kTiles = false;

  static size_t depth(size_t width) { return width / kUnit; }

  struct Keys {
    const uint16_t* data;
    ptrdiff_t stride;
  };

  static rules::ScaleFactors scale_factors(const AttentionParams& p) {
    return {.queries = 1.0F, .scores = 1.0F, .softmax = p.scale.queries * p.scale.softmax};
  }
  static const uint16_t* row(const StoredRows& rows, int64_t batch, int64_t head, int64_t row) {
    return static_cast<const uint16_t*>(rows.data) + row_offset(rows.stride, batch, head, row);
  }
  static HWY_INLINE void transpose_queries(DF d, const uint16_t* const* rows, size_t depth, float,
                                           float* to, size_t stride) {
    transpose_pairs(d, rows, depth, to, stride);
  }
  static HWY_INLINE Keys keys(DF, const AttentionParams& p, int64_t batch, int64_t head,
                              int64_t first, size_t, float*) {
    return {row(p.k, batch, head, first), static_cast<ptrdiff_t>(p.k.stride[2])};
  }
  static void copy_values(DF d, const AttentionParams& p, int64_t batch, int64_t head,
                          int64_t first, size_t count, float* to, ptrdiff_t strip, float*) {
    copy_pairs_to_strips<TileSize::kMaxVecs>(d, row(p.v, batch, head, first),
                                             static_cast<ptrdiff_t>(p.v.stride[2]), count,
                                             static_cast<size_t>(p.value_dim), to, strip);
  }
  static HWY_INLINE void convert_weights(DF d, float* weights, size_t stride, size_t keys) {
    pair_weights(d, weights, stride, keys);
  }
};
#endif

// ---- The state that all parts of the kernel share, which queries and heads the rows are, and
// which keys they see. The rows are multiplied with one key block after the other.

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

// ---- Loads Q, K and V, and prefetches the next job's operands. ----

// Loads Q of a panel just before its first use. Loading Q of the whole block at once would delay
// the products.
template <class Products>
void transpose_queries(QueryBlock<Products>& b, Panel& panel) {
  using Key = typename Products::Key;
  if (panel.transposed) return;
  panel.transposed = true;
  const StoredRows& q = b.p.q;
  const auto width = static_cast<size_t>(b.p.head_dim);
  const bool in_place = !Products::kTiles && (!std::is_same_v<Key, float> || q.dense_floats());
  const int64_t head_stride = q.stride[1], query_stride = q.stride[2];
  const auto* const queries =
      in_place ? static_cast<const Key*>(q.data) + row_offset(q.stride, b.batch, b.first_head(), 0)
               : nullptr;
  std::array<const Key*, hn::MaxLanes(DF())> rows;
  for (size_t lane = panel.lane; lane < panel.lane + panel.lanes; lane += b.vector) {
    for (size_t i = 0; i < b.vector; ++i) {
      const RowPlace place = b.s.place[lane + i];
      if (in_place) {
        rows[i] = queries + place.head_in_group * head_stride + place.query * query_stride;
      } else if constexpr (std::is_same_v<Key, float>) {
        rows[i] = read_rows(b.d, q, b.batch, b.head_of(lane + i), place.query, 1, width, width,
                            b.s.query + i * width)
                      .data;
      } else if constexpr (Products::kTiles) {
        rows[i] =
            Products::read_query(b.d, b.p, b.batch, b.head_of(lane + i), place.query, i, b.s.query);
      }
    }
    float* const strip = b.s.queries + lane / score_lanes() * score_lanes() * b.depth();
    Products::transpose_queries(b.d, rows.data(), b.depth(), b.scale.queries,
                                strip + lane % score_lanes(), score_lanes());
  }
}

template <class Products>
Values load_values(const QueryBlock<Products>& b, int64_t first, size_t count) {
  const auto strip = static_cast<ptrdiff_t>(strip_lanes());
  if (b.value_lanes == 0) return {nullptr, 0, 0};
  if constexpr (Products::kTiles) {
    Products::copy_values(b.d, b.p, b.batch, b.kv_head, first, count, b.s.values, b.s.value);
    return {b.s.values, static_cast<ptrdiff_t>(tile_value_stride(count)), 0};
  } else {
    if (b.g.copies_values) {
      const ptrdiff_t strip_step = static_cast<ptrdiff_t>(count) * strip;
      Products::copy_values(b.d, b.p, b.batch, b.kv_head, first, count, b.s.values, strip_step,
                            b.s.value);
      return {b.s.values, strip, strip_step};
    }
    const auto width = static_cast<size_t>(b.p.value_dim);
    const FloatRows rows =
        read_rows(b.d, b.p.v, b.batch, b.kv_head, first, count, width, width, nullptr);
    return {rows.data, rows.stride, strip};
  }
}

// Calls visit(KeyBlock) for each key block of `keys`, in order.
template <class Products, class Visit>
HWY_INLINE void for_key_blocks(const QueryBlock<Products>& b, const rules::KeyRange& keys,
                               const Visit& visit) {
  const int64_t step = b.g.key_block;
  for (int64_t key = keys.first; key < keys.last; key += step) {
    const rules::KeyRange range{key, std::min(key + step, keys.last)};
    const auto count = static_cast<size_t>(range.last - key);
    const auto k = Products::keys(b.d, b.p, b.batch, b.kv_head, key, count, b.s.keys);
    visit(KeyBlock<Products>{range, k.data, k.stride, load_values(b, key, count)});
  }
}

// Plans prefetches of this block's output rows and of the next job's first operands: a few cache
// lines before each tile of this block.
template <class Products>
void prefetch_next(QueryBlock<Products>& b, const BlockJob* next) {
  const AttentionParams& p = b.p;
  b.prefetched = PrefetchedRows();
  const int64_t group = p.group();
  const StoredRows out{.data = p.out.data, .type = p.out.type, .stride = p.out.stride};
  b.prefetched.add(out, {.batch = b.batch,
                         .head = b.kv_head * group,
                         .group = group,
                         .first = b.first_row,
                         .last = b.first_row + static_cast<int64_t>(b.rows),
                         .width = p.value_dim});
  if (next != nullptr) {
    b.prefetched.add(p.q, {.batch = next->batch,
                           .head = next->kv_head * group,
                           .group = group,
                           .first = next->first_row,
                           .last = std::min(p.end_row(), next->first_row + b.g.rows),
                           .width = p.head_dim});
    if (next->batch != b.batch || next->kv_head != b.kv_head) {
      PrefetchedRows::Part keys{.batch = next->batch,
                                .head = next->kv_head,
                                .group = 1,
                                .first = 0,
                                .last = std::min(b.g.key_block, p.keys),
                                .width = p.head_dim};
      b.prefetched.add(p.k, keys);
      keys.width = p.value_dim;
      b.prefetched.add(p.v, keys);
    }
  }
  // Prefetch half of the lines during each of the two products, which take about the same time.
  // Prefetching 32 lines at once, more than a core can have in flight, cost 1 % of bert's speed.
  const auto lines_per_tile = [&](size_t tiles) {
    return (b.prefetched.lines() / 2 + tiles) / std::max<size_t>(tiles, 1);
  };
  const auto tiles = [](size_t rows, size_t tile_rows, size_t columns, size_t strip) {
    return ceil_div(rows, tile_rows) * ceil_div(columns, strip);
  };
  const auto keys = static_cast<size_t>(std::max<int64_t>(b.seen.last - b.seen.first, 0));
  const auto step = static_cast<size_t>(std::max<int64_t>(b.g.key_block, 1));
  b.lines_per_score_tile =
      lines_per_tile(tiles(keys, TileSize::rows(TileSize::kScoreVecs), b.lanes, score_lanes()));
  b.lines_per_value_tile =
      lines_per_tile(ceil_div(keys, step) * tiles(b.rows, TileSize::rows(TileSize::kMaxVecs),
                                                  b.value_lanes, strip_lanes()));
}

}  // namespace MULTIHEAD_FILE
}  // namespace multihead::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_QUERY_BLOCK_INL_H_
