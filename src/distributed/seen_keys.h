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

// Copies the rows of the chunks `wanted` from memory that holds the chunks `held`.
void narrow(std::span<const Chunk> held, const ConstAnyTensor& from, std::span<const Chunk> wanted,
            const AnyTensor& to, Context& context);

// Sends the rows `leaving` of the keys that a rank holds, if there are any. `narrowed` is scratch
// for a copy of these rows, which is not needed if all rows are sent.
void send_keys(Transport& transport, int to, const Layouts& layouts, std::span<const Chunk> held,
               const KeyMemory& memory, std::span<const Chunk> leaving, const KeyMemory& narrowed,
               Context& context);

// The keys of every rank on their way around the ring. In step t, rank r holds keys of rank r - t.
// A rank passes on only the rows that a rank ahead still sees.
class RingJourney {
 public:
  RingJourney(const Call& call, const Shards& shards, int ranks)
      : call_(call), shards_(shards), ranks_(ranks) {}

  int owner(int rank, int step) const { return (rank - step % ranks_ + ranks_) % ranks_; }
  // The owner's keys that are still held in a step; all its keys in step 0.
  Chunks keys(int owner, int step) const;
  // Last step in which any of the owner's keys are held.
  int last_step(int owner) const;

 private:
  const Call& call_;
  const Shards& shards_;
  int ranks_;
};

}  // namespace multihead::distributed
