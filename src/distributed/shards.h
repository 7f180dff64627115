// Rows of the whole problem that each rank holds, and the parts of packed sequences in them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "multihead/distributed.h"

namespace multihead::distributed {

// Consecutive rows of the whole problem, and their first row in the rank's shard.
struct Chunk {
  int64_t first = 0, count = 0, local = 0;

  bool operator==(const Chunk&) const = default;
};

// Rows of one rank that belong to one sequence.
struct Segment {
  int64_t sequence = 0;
  int64_t first = 0;  // first row within the sequence
  int64_t count = 0;
  int64_t local = 0;  // first row within the shard
};

// Returns the chunks of a rank, without empty ones. For kContiguous, `counts` gives the rows of
// each rank.
std::vector<Chunk> chunks_of(const Sharding& sharding, std::span<const int64_t> counts,
                             int64_t total, int rank);

// Returns the segments of a chunk in order, without empty ones. Sequence s is rows cu[s] .. cu[s +
// 1] - 1.
std::vector<Segment> segments_of(const Chunk& chunk, std::span<const int32_t> cu);
std::vector<Segment> segments_of(std::span<const Chunk> chunks, std::span<const int32_t> cu);

}  // namespace multihead::distributed
