// All keys that a rank's queries see, received from the other ranks at once.
#pragma once

#include <cstddef>
#include <vector>

#include "distributed/call.h"
#include "distributed/seen_keys.h"
#include "distributed/shard_memory.h"
#include "distributed/transport.h"
#include "rules/arena.h"

namespace multihead::distributed {

class GatheredKeys {
 public:
  GatheredKeys(const Call& call, const Shards& shards, int rank);

  // Keys of `owner` that this rank sees; all its keys if `owner` is this rank.
  const Chunks& of(int owner) const { return arriving_[static_cast<size_t>(owner)]; }
  const Chunks& to(int viewer) const { return leaving_[static_cast<size_t>(viewer)]; }

  void take(rules::Arena& arena, const Layouts& layouts);

  // Sends this rank's keys to the other ranks and receives theirs.
  Status start(Transport& transport, const Layouts& layouts, Context& context) const;
  // Call this after the transfers: joins all keys in their order. Keys that no query sees are 0.
  void join(const Layouts& layouts, Context& context) const;

  AnyTensor k(const Layouts& layouts) const { return layouts.k(whole_, call_.sharding.keys); }
  AnyTensor v(const Layouts& layouts) const { return layouts.v(whole_, call_.sharding.keys); }

 private:
  const Call& call_;
  const Shards& shards_;
  int rank_;
  std::vector<Chunks> arriving_, leaving_;      // received from and sent to each rank
  std::vector<KeyMemory> received_, narrowed_;  // received from and sent to each rank
  KeyMemory whole_;
};

}  // namespace multihead::distributed
