// Determines which keys the queries of a rank see, so that only these keys are sent. Causal order,
// the window and the lengths decide this, masks do not. All ranks compute the same result. Sends
// them around the ring, or to all ranks at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "distributed/call.h"
#include "distributed/shard_memory.h"
#include "rules/arena.h"

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

// The keys of every rank on their way around the ring. In step t, rank r holds keys of rank r - t.
// It passes on only the rows that a rank ahead still sees; with `keeps_rows` all that have left
// their owner, because gradients stay with these rows.
class RingKeys {
 public:
  RingKeys(const Task& task, bool keeps_rows);

  int owner(int rank, int step) const {
    const int ranks = task_.size();
    return (rank - step % ranks + ranks) % ranks;
  }
  // The owner's keys that are still held in a step; all its keys in step 0.
  Chunks rows(int owner, int step) const;
  // Last step in which any of the owner's keys are held.
  int last_step(int owner) const;

  // The keys that this rank holds in a step; none in step size().
  const Chunks& held(int step) const { return held_[static_cast<size_t>(step)]; }
  AnyTensor k(int step) const { return task_.layouts().k(memory(step), count(step)); }
  AnyTensor v(int step) const { return task_.layouts().v(memory(step), count(step)); }
  int64_t count(int step) const { return count_of(held(step)); }
  int64_t most_rows() const { return most_rows_; }

  void take(rules::Arena& arena);
  // Packs this rank's keys, for step 0.
  Status start() const { return pack(task_, memory(0)); }
  // Sends the keys of a step on, and receives the keys of the next step.
  void exchange(int step) const;

 private:
  Chunks seen(int owner, int step) const;
  const KeyMemory& memory(int step) const { return memory_[static_cast<size_t>(step % 2)]; }

  const Task& task_;
  bool keeps_rows_;
  std::vector<Chunks> held_;
  int64_t most_rows_ = 0;
  std::array<KeyMemory, 2> memory_;
  KeyMemory narrowed_;
};

// All keys that a rank's queries see, received from the other ranks at once.
class GatheredKeys {
 public:
  explicit GatheredKeys(const Task& task);

  // Keys of `owner` that this rank sees; all its keys if `owner` is this rank.
  const Chunks& received(int owner) const { return incoming_[static_cast<size_t>(owner)]; }
  // Keys of this rank that `viewer` sees.
  const Chunks& sent(int viewer) const { return outgoing_[static_cast<size_t>(viewer)]; }

  void take(rules::Arena& arena);

  // Sends this rank's keys to the other ranks and receives theirs.
  Status start() const;
  // Call this after the transfers: joins all keys in their order. Keys that no query sees are 0.
  void join() const;

  AnyTensor k() const { return task_.layouts().k(whole_, task_.call.sharding.keys); }
  AnyTensor v() const { return task_.layouts().v(whole_, task_.call.sharding.keys); }

 private:
  const Task& task_;
  std::vector<Chunks> incoming_, outgoing_;     // received from and sent to each rank
  std::vector<KeyMemory> received_, narrowed_;  // their memory
  KeyMemory whole_;
};

}  // namespace multihead::distributed
