// Determines which keys the queries of a rank see, so that only these keys are sent. Causal order,
// the window and the lengths decide this, masks do not. All ranks compute the same result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "distributed/call.h"
#include "distributed/shard_memory.h"

namespace multihead::distributed {

using Chunks = std::vector<Chunk>;

// Number of rows.
int64_t count_of(std::span<const Chunk> chunks);

// Rows of `keys` that any query of these ranks sees, in any batch entry. Their local rows are
// contiguous and begin at 0.
Chunks seen_keys(const Call& call, const Shards& shards, std::span<const Chunk> keys,
                 int first_rank, int end_rank);

// Local row at which `chunk` begins, in memory that holds the chunks `held`. One of these chunks
// contains `chunk`.
int64_t local_row(std::span<const Chunk> held, const Chunk& chunk);

// Sends the rows `outgoing` of the keys `held` in `memory`, if there are any. `narrowed` is scratch
// for a copy of these rows, which is not needed if all rows are sent.
void send_keys(const Task& task, int to, std::span<const Chunk> held, const KeyMemory& memory,
               std::span<const Chunk> outgoing, const KeyMemory& narrowed);

// The keys of every rank on their way around the ring. In step t, rank r holds keys of rank r - t.
// A rank passes on only the rows that a rank ahead still sees.
class RingSchedule {
 public:
  explicit RingSchedule(const Task& task) : task_(task) {}

  int owner(int rank, int step) const {
    const int ranks = task_.size();
    return (rank - step % ranks + ranks) % ranks;
  }
  // The owner's keys that are still held in a step; all its keys in step 0.
  Chunks keys(int owner, int step) const;
  // Last step in which any of the owner's keys are held.
  int last_step(int owner) const;

 private:
  const Task& task_;
};

}  // namespace multihead::distributed
