// Tiles of query rows for the kernels without wgmma.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/device/device.h"
#include "cuda/device/launch.h"
#include "cuda/params.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

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
  const int64_t tiles = (call.rows() + kRows - 1) / kRows;
  // Last rows first: with a causal mask they see the most keys.
  int64_t index = block_index().x;
  const int64_t first_row = call.first_row() + (tiles - 1 - index % tiles) * kRows;
  index /= tiles;
  const int64_t kv_head = index % call.kv_heads;
  const Entry entry = entry_of(p, index / call.kv_heads);
  const int64_t end_row = rules::least_of(call.end_query, entry.queries) * call.group();
  return {entry, kv_head, first_row, rules::least_of(first_row + kRows, end_row) - 1};
}

// Launches a kernel with one block per tile.
template <int kRows, class Params>
int launch_row_tiles(const rules::AttentionParams& call, int threads, size_t shared_bytes,
                     StreamHandle stream, void (*kernel)(Params),
                     const std::type_identity_t<Params>& params) {
  const int64_t blocks = (call.rows() + kRows - 1) / kRows * call.kv_heads * call.batch;
  return launch({.grid = {static_cast<uint32_t>(blocks), 1, 1},
                 .threads = threads,
                 .shared_bytes = shared_bytes,
                 .stream = stream},
                kernel, params);
}

}  // namespace multihead::cuda
