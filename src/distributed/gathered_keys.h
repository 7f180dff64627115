// All keys that a rank's queries see, received from the other ranks at once.
#pragma once

#include <cstddef>
#include <vector>

#include "distributed/seen_keys.h"
#include "distributed/shard_memory.h"
#include "rules/arena.h"

namespace multihead::distributed {

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
