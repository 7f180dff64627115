// Which rows of the whole problem each rank holds, and where packed sequences cross them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/distributed.h"

namespace multihead::distributed {

// Consecutive rows of the whole problem, and where they begin in the shard of a rank.
struct Chunk {
  int64_t first = 0, count = 0, local = 0;

  bool operator==(const Chunk&) const = default;
};

// The rows of one rank that belong to one sequence.
struct Segment {
  int64_t sequence = 0;
  int64_t first = 0;  // in the sequence
  int64_t count = 0;
  int64_t local = 0;  // in the shard
};

// Empty chunks are left out. Contiguous: `counts` are the rows of each rank.
std::vector<Chunk> chunks_of(const Sharding& sharding, std::span<const int64_t> counts,
                             int64_t total, int rank);

// Sequence s is rows cu[s] .. cu[s + 1] - 1. Empty segments are left out; in order.
std::vector<Segment> segments_of(const Chunk& chunk, std::span<const int32_t> cu);
std::vector<Segment> segments_of(std::span<const Chunk> chunks, std::span<const int32_t> cu);

}  // namespace multihead::distributed
