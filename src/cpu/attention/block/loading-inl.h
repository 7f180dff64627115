// Loads Q, K and V in the layout that the products read, and prefetches the next job's operands.
#if defined(MULTIHEAD_CPU_ATTENTION_BLOCK_LOADING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MULTIHEAD_CPU_ATTENTION_BLOCK_LOADING_INL_H_
#undef MULTIHEAD_CPU_ATTENTION_BLOCK_LOADING_INL_H_
#else
#define MULTIHEAD_CPU_ATTENTION_BLOCK_LOADING_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/attention/block/products-inl.h"
#include "cpu/attention/block/query_block-inl.h"
#include "cpu/simd/file_namespace.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace multihead::cpu::HWY_NAMESPACE {
inline namespace MULTIHEAD_FILE {
namespace hn = hwy::HWY_NAMESPACE;

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

#endif  // MULTIHEAD_CPU_ATTENTION_BLOCK_LOADING_INL_H_
