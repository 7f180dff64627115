// The tile of query rows or of keys of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "cuda/kernels.h"
#include "cuda/params.h"
#include "cuda/tile_axis.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

// Rows first .. last-1 in the row list of a key/value head.
struct RowRange {
  int64_t first = 0, last = 0;
};

// Rows first_row .. last_row in the row list of a key/value head. The list has, for each query, one
// row of each query head that shares the key/value head: row = query * group + head in group.
struct RowTile {
  Entry entry;
  int64_t kv_head, first_row, last_row;

  __device__ __forceinline__ bool empty() const { return first_row > last_row; }
  // Union of the keys that the rows see, from a multiple of `step` on. The first and the last
  // visible key never decrease as the query rises.
  __device__ __forceinline__ rules::KeyRange keys(int64_t group, int64_t step) const {
    return {entry.visibility.seen_by(first_row / group).first / step * step,
            entry.visibility.seen_by(last_row / group).last};
  }
};

// Returns the block's tile of up to kRows rows.
template <int kRows>
__device__ __forceinline__ RowTile row_tile(const ForwardParams& p) {
  const rules::AttentionParams& call = p.call;
  const TileAxis axis = query_axis(p, kRows, call.group());
  const int64_t slots = axis.slots(), kv_head = block_number() / slots;
  RowTile none{};
  none.last_row = -1;
  if (kv_head >= call.kv_heads) return none;
  const auto [index, rank] = axis.place_of(block_number() % slots);
  const Entry entry = entry_of(p, index);
  const int64_t end_row = rules::least_of(call.end_query, entry.queries) * call.group();
  // Last rows first: with a causal mask they see the most keys.
  const int64_t tile = tiles_of(end_row - call.first_row(), kRows) - 1 - rank;
  if (rank < 0 || tile < 0) return none;
  const int64_t first_row = call.first_row() + tile * kRows;
  return {entry, kv_head, first_row, rules::least_of(first_row + kRows, end_row) - 1};
}

// Keys first_key .. last_key of a key/value head.
struct KeyTile {
  Entry entry;
  int64_t kv_head, first_key, last_key;

  __device__ __forceinline__ bool empty() const { return first_key > last_key; }
  // The rows that see at least one key of the tile, from a multiple of `step` on. The first and the
  // last visible key never decrease as the query rises, so these rows are contiguous.
  __device__ __forceinline__ RowRange rows(int64_t group, int64_t step) const {
    const rules::QueryRange queries = entry.visibility.queries_seeing({first_key, last_key + 1});
    const int64_t first = rules::most_of(queries.first, 0);
    const int64_t last = rules::least_of(queries.last, entry.queries);
    if (first >= last) return {};
    return {first * group / step * step, last * group};
  }
};

// Returns the block's tile of up to kKeys keys. The first keys come first: with a causal mask most
// rows see them.
template <int kKeys>
__device__ __forceinline__ KeyTile key_tile(const ForwardParams& p) {
  const TileAxis axis = key_axis(p, kKeys);
  const int64_t slots = axis.slots(), kv_head = block_number() / slots;
  KeyTile none{};
  none.last_key = -1;
  if (kv_head >= p.call.kv_heads) return none;
  const auto [index, tile] = axis.place_of(block_number() % slots);
  if (tile < 0) return none;
  const Entry entry = entry_of(p, index);
  const int64_t first_key = tile * kKeys;
  return {entry, kv_head, first_key, rules::least_of(first_key + kKeys, entry.keys) - 1};
}

// Launches a kernel with one block per slot of the axis and key/value head. For `early` see
// LaunchShape.
template <class Params>
int launch_tiles(const TileAxis& axis, int64_t kv_heads, int threads, size_t shared_bytes,
                 StreamHandle stream, void (*kernel)(Params),
                 const std::type_identity_t<Params>& params, bool early = false) {
  return launch({.blocks = axis.slots() * kv_heads,
                 .threads = threads,
                 .shared_bytes = shared_bytes,
                 .stream = stream,
                 .early = early},
                kernel, params);
}

}  // namespace multihead::cuda
