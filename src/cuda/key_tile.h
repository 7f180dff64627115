// Tiles of keys for the backward kernels that compute d_k and d_v.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/backward.h"
#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "cuda/params.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

// Rows first .. last-1 in the row list of a key/value head, see RowTile.
struct RowRange {
  int64_t first = 0, last = 0;
};

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

// Returns the block's tile of up to kKeys keys.
template <int kKeys>
__device__ __forceinline__ KeyTile key_tile(const ForwardParams& p) {
  const rules::AttentionParams& call = p.call;
  const int64_t tiles = (call.keys + kKeys - 1) / kKeys;
  // Order the tiles so that the first keys come first: with a causal mask most rows see them.
  int64_t index = block_index().x;
  const int64_t first_key = index % tiles * kKeys;
  index /= tiles;
  const int64_t kv_head = index % call.kv_heads;
  const Entry entry = entry_of(p, index / call.kv_heads);
  return {entry, kv_head, first_key, rules::least_of(first_key + kKeys, entry.keys) - 1};
}

// Launches a kernel with one block per tile.
template <int kKeys>
int launch_key_tiles(const BackwardParams& params, int threads, size_t shared_bytes,
                     StreamHandle stream, void (*kernel)(BackwardParams)) {
  const rules::AttentionParams& call = params.forward.call;
  const int64_t blocks = (call.keys + kKeys - 1) / kKeys * call.kv_heads * call.batch;
  return launch({.grid = {static_cast<uint32_t>(blocks), 1, 1},
                 .threads = threads,
                 .shared_bytes = shared_bytes,
                 .stream = stream},
                kernel, params);
}

}  // namespace multihead::cuda
