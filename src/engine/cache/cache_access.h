// What a member of a team does with caches, beyond the public calls.
#pragma once

#include "engine/runtime/team.h"
#include "multihead/kv_cache.h"

namespace multihead {

struct KVCache::Internals {
  // KVCache::create(). With a team, the cache stores the key/value heads that this member computes,
  // if there is more than one head: attend() then exchanges the results with the other members.
  static Status create(const KVCacheConfig& config, const engine::Team* team, KVCache& cache);

  // Whether attend() divides the heads of a cache among the members of a team.
  static bool is_share(const KVCache& cache) {
    return cache.stored_heads() < cache.config().kv_heads;
  }
};

}  // namespace multihead
