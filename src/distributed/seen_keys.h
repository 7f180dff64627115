// Which keys the queries of a rank see, so that only those are sent. Causal order, the window and
// the lengths decide this, masks do not. All ranks compute the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "distributed/call.h"
#include "distributed/shard_memory.h"

namespace multihead::distributed {

using Chunks = std::vector<Chunk>;

// How many rows.
int64_t count_of(std::span<const Chunk> chunks);

// The rows of `keys` that any query of these ranks sees, in any batch entry. They lie one after the
// other, from local row 0 on.
Chunks seen_keys(const Call& call, const Shards& shards, std::span<const Chunk> keys,
                 int first_rank, int end_rank);

// Where a chunk begins in memory that holds these chunks, one of which contains it.
int64_t local_row(std::span<const Chunk> held, const Chunk& chunk);

// Copies the rows of some chunks from memory that holds more.
void narrow(std::span<const Chunk> held, const ConstAnyTensor& from, std::span<const Chunk> wanted,
            const AnyTensor& to, Context& context);

// Sends some rows of the keys that a rank holds, if any: those that `leaving` names. `narrowed` is
// memory for them, which is not used if they are all.
void send_keys(Transport& transport, int to, const Layouts& layouts, std::span<const Chunk> held,
               const KeyMemory& memory, std::span<const Chunk> leaving, const KeyMemory& narrowed,
               Context& context);

// The keys of every rank on their way round the ring. In step t, rank r has keys of rank r - t.
// They are passed on while a rank ahead sees some of them, and only the rows that it or the next
// ones see.
class RingJourney {
 public:
  RingJourney(const Call& call, const Shards& shards, int ranks)
      : call_(call), shards_(shards), ranks_(ranks) {}

  int owner(int rank, int step) const { return (rank - step % ranks_ + ranks_) % ranks_; }
  // What is left of the owner's keys in a step; all of them in step 0.
  Chunks keys(int owner, int step) const;
  // The last step in which there are any.
  int last_step(int owner) const;

 private:
  const Call& call_;
  const Shards& shards_;
  int ranks_;
};

}  // namespace multihead::distributed
