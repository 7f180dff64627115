// The tiles of query rows and of keys of a call, in batch entries and in packed sequences.
#pragma once

#include <cstdint>

#include "cuda/divide.h"
#include "cuda/params.h"
#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

constexpr int64_t tiles_of(int64_t rows, int64_t tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

// A tile's batch entry or packed sequence, and its number there, which may lie beyond the last tile
// of the entry.
struct TilePlace {
  int64_t entry, tile;
};

// The axis of queries or of keys of a call, cut into tiles of `tile_rows` rows. A tile never has
// rows of two entries, so each entry has slots for its tiles, and a block serves one slot.
//
// The lengths of packed sequences are in device memory. `starts` has their prefix sum, so slots
// need no other one: sequence s begins at slot starts[s] / tile_rows + s. That leaves each sequence
// as many slots as it has tiles, or one more.
struct TileAxis {
  int64_t entries, rows;   // rows per entry, or of all packed sequences
  int64_t tile_rows;       // rows per tile
  const int32_t* starts;   // null for batch entries
  int64_t rows_per_start;  // rows of the axis per unit of `starts`

  constexpr int64_t slots() const {
    return starts == nullptr ? tiles_of(rows, tile_rows) * entries : rows / tile_rows + entries;
  }
  // The values of `starts` are not checked: the search ends for any values.
  constexpr TilePlace place_of(int64_t slot) const {
    if (starts == nullptr) {
      const int64_t tiles = tiles_of(rows, tile_rows);
      const auto [entry, tile] = divide(slot, tiles);
      return {entry, tile};
    }
    const auto first_slot = [&](int64_t entry) {
      const int64_t row = rules::limited(starts[entry] * rows_per_start, 0, rows);
      return divide(row, tile_rows).quotient + entry;
    };
    int64_t entry = 0, end = entries;
    while (end - entry > 1) {
      const int64_t middle = (entry + end) / 2;
      if (first_slot(middle) <= slot) {
        entry = middle;
      } else {
        end = middle;
      }
    }
    return {entry, slot - first_slot(entry)};
  }
};

// `group`: query heads whose rows lie in one list, see RowTile.
constexpr TileAxis query_axis(const ForwardParams& p, int64_t tile_rows, int64_t group) {
  const rules::AttentionParams& call = p.call;
  const bool packed = p.cu_q != nullptr;
  return {.entries = call.batch,
          .rows = (packed ? p.packed_queries : call.end_query - call.first_query) * group,
          .tile_rows = tile_rows,
          .starts = p.cu_q,
          .rows_per_start = group};
}
constexpr TileAxis key_axis(const ForwardParams& p, int64_t tile_rows) {
  return {.entries = p.call.batch,
          .rows = p.cu_k != nullptr ? p.packed_keys : p.call.keys,
          .tile_rows = tile_rows,
          .starts = p.cu_k,
          .rows_per_start = 1};
}

}  // namespace multihead::cuda
