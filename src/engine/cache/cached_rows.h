// The rows of a KV cache: where they lie, and how tokens are written into them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "multihead/kv_cache.h"
#include "rules/attention_params.h"
#include "rules/shared.h"

namespace multihead::engine {

MULTIHEAD_SHARED int64_t pages_per_entry(const KVCacheConfig& config);

// Describes the keys or values of a cache to the kernels. `width` is the length of a row; rows are
// numbered as by KVCache::row_of().
rules::StoredRows cached_rows(const KVCacheConfig& config, const std::byte* rows,
                              const float* scales, const int32_t* page_table, int64_t width);

struct CachedRows {
  std::byte* rows;
  float* scales;  // kInt8 only
};

// Describes a cache that stores only the heads first_head to end_head - 1. Kernels still index them
// by their numbers among all heads.
rules::StoredRows cached_rows(const KVCacheConfig& config, int64_t first_head, int64_t end_head,
                              const CachedRows& stored, const int32_t* page_table, int64_t width);

}  // namespace multihead::engine
