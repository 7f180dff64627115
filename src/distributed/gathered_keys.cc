#include "distributed/gathered_keys.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace multihead::distributed {

GatheredKeys::GatheredKeys(const Task& task) : task_(task) {
  const Call& call = task.call;
  const Shards& shards = task.shards;
  const int rank = task.rank();
  const auto ranks = static_cast<int>(shards.keys.size());
  const Chunks own = shards.key_chunks(call, rank);
  for (int other = 0; other < ranks; ++other) {
    const Chunks keys = shards.key_chunks(call, other);
    incoming_.push_back(other == rank ? own : seen_keys(call, shards, keys, rank, rank + 1));
    outgoing_.push_back(other == rank ? own : seen_keys(call, shards, own, other, other + 1));
  }
  received_.resize(incoming_.size());
  narrowed_.resize(outgoing_.size());
}

void GatheredKeys::take(rules::Arena& arena) {
  const Layouts layouts = task_.layouts();
  const auto own = static_cast<size_t>(task_.rank());
  for (size_t other = 0; other < received_.size(); ++other) {
    layouts.take(arena, received_[other], count_of(incoming_[other]));
    const bool narrows = count_of(outgoing_[other]) != count_of(outgoing_[own]);
    layouts.take(arena, narrowed_[other], narrows ? count_of(outgoing_[other]) : 0);
  }
  layouts.take(arena, whole_, task_.call.sharding.keys);
}

Status GatheredKeys::start() const {
  const int rank = task_.rank();
  const KeyMemory& own = received_[static_cast<size_t>(rank)];
  MULTIHEAD_TRY(pack(task_, own));
  for (int other = 0; other < task_.size(); ++other) {
    if (other == rank) continue;
    const auto at = static_cast<size_t>(other);
    receive(task_.transport(), other, task_.layouts(), received_[at], count_of(received(other)));
    send_keys(task_, other, sent(rank), own, sent(other), narrowed_[at]);
  }
  return {};
}

void GatheredKeys::join() const {
  const Layouts layouts = task_.layouts();
  int64_t rows = 0;
  for (const Chunks& chunks : incoming_) rows += count_of(chunks);
  if (rows < task_.call.sharding.keys) {
    std::memset(whole_.k, 0, layouts.k_bytes(task_.call.sharding.keys));
    std::memset(whole_.v, 0, layouts.v_bytes(task_.call.sharding.keys));
  }
  for (size_t other = 0; other < received_.size(); ++other) {
    const int64_t count = count_of(incoming_[other]);
    scatter(incoming_[other], layouts.k(received_[other], count), k(), task_.context);
    scatter(incoming_[other], layouts.v(received_[other], count), v(), task_.context);
  }
}

}  // namespace multihead::distributed
