#include "distributed/gathered_keys.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace multihead::distributed {

GatheredKeys::GatheredKeys(const Call& call, const Shards& shards, int rank)
    : call_(call), shards_(shards), rank_(rank) {
  const auto ranks = static_cast<int>(shards.keys.size());
  const Chunks own = shards.key_chunks(call, rank);
  for (int other = 0; other < ranks; ++other) {
    const Chunks keys = shards.key_chunks(call, other);
    arriving_.push_back(other == rank ? own : seen_keys(call, shards, keys, rank, rank + 1));
    leaving_.push_back(other == rank ? own : seen_keys(call, shards, own, other, other + 1));
  }
  received_.resize(arriving_.size());
  narrowed_.resize(leaving_.size());
}

void GatheredKeys::take(rules::Arena& arena, const Layouts& layouts) {
  const auto own = static_cast<size_t>(rank_);
  for (size_t other = 0; other < received_.size(); ++other) {
    layouts.take(arena, received_[other], count_of(arriving_[other]));
    const bool narrows = count_of(leaving_[other]) != count_of(leaving_[own]);
    layouts.take(arena, narrowed_[other], narrows ? count_of(leaving_[other]) : 0);
  }
  layouts.take(arena, whole_, call_.sharding.keys);
}

Status GatheredKeys::start(Transport& transport, const Layouts& layouts, Context& context) const {
  const KeyMemory& own = received_[static_cast<size_t>(rank_)];
  MULTIHEAD_TRY(pack(call_, shards_, rank_, layouts, own, context));
  for (int other = 0; other < transport.size(); ++other) {
    if (other == rank_) continue;
    const auto at = static_cast<size_t>(other);
    receive(transport, other, layouts, received_[at], count_of(of(other)));
    send_keys(transport, other, layouts, to(rank_), own, to(other), narrowed_[at], context);
  }
  return {};
}

void GatheredKeys::join(const Layouts& layouts, Context& context) const {
  int64_t rows = 0;
  for (const Chunks& chunks : arriving_) rows += count_of(chunks);
  if (rows < call_.sharding.keys) {
    std::memset(whole_.k, 0, layouts.k_bytes(call_.sharding.keys));
    std::memset(whole_.v, 0, layouts.v_bytes(call_.sharding.keys));
  }
  for (size_t other = 0; other < received_.size(); ++other) {
    const int64_t count = count_of(arriving_[other]);
    scatter(arriving_[other], layouts.k(received_[other], count), k(layouts), context);
    scatter(arriving_[other], layouts.v(received_[other], count), v(layouts), context);
  }
}

}  // namespace multihead::distributed
