// Operations on caches for the members of a team, in addition to the public calls.
#pragma once

#include <cstdint>

#include "engine/error/error.h"
#include "engine/runtime/team.h"
#include "multihead/kv_cache.h"
#include "rules/shared.h"

namespace multihead {

struct KVCache::Internals {
  // Like KVCache::create(). With a team and more than one key/value head, the cache stores only the
  // heads that this member computes, and attend() exchanges the results with the other members.
  MULTIHEAD_SHARED static Status create(const KVCacheConfig& config, const engine::Team* team,
                                        KVCache& cache);

  // Refuses queries of the last `queries` tokens whose window reaches back to tokens that the ring
  // has overwritten, or will have after `appended` more tokens. Errors: kOption on `argument`.
  MULTIHEAD_SHARED static Status validate_ring(const KVCache& cache, engine::Name argument,
                                               int64_t appended, int64_t queries,
                                               const Window& window);
  // Copies a contiguous cache to memory for `capacity` tokens of each entry, as kContiguous or
  // kRing, or a ring to one of its capacity. With less capacity than tokens, only the first tokens
  // are copied, and the copy must be truncated to them. `made` may be `cache`. Errors: kMemory.
  MULTIHEAD_SHARED static Status copy(const KVCache& cache, int64_t capacity,
                                      KVCacheConfig::Layout layout, KVCache& made);

  // True if attend() divides the cache's heads among the members of a team.
  static bool is_share(const KVCache& cache) {
    return cache.stored_heads() < cache.config().num_kv_heads;
  }
  // A cache of some heads. Without heads it has no rows, and counts those of other memory.
  MULTIHEAD_SHARED static Status create(const KVCacheConfig& config, int64_t first_head,
                                        int64_t end_head, KVCache& cache);
};

}  // namespace multihead
