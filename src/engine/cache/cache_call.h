// Checks attention() of queries over a KV cache, and makes the inputs and options of the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "multihead/kv_cache.h"
#include "rules/shared.h"

namespace multihead::engine {

// Memory of a cache. Rows are numbered as by KVCache::row_of().
struct CacheMemory {
  const std::byte* keys = nullptr;
  const std::byte* values = nullptr;
  const float* key_scales = nullptr;  // kInt8 only
  const float* value_scales = nullptr;
  std::span<const int32_t> lengths;     // (B)
  const int32_t* firsts = nullptr;      // (B)
  const int32_t* page_table = nullptr;  // (B, pages per entry); kPaged only
};

struct CacheCall {
  AttentionShape shape;
  AttentionOptions options;
  AttentionInputs inputs;
};

// `keys` is the length of the longest batch entry.
MULTIHEAD_SHARED Status make_cache_call(const KVCacheConfig& config, const CacheMemory& memory,
                                        int64_t keys, const ConstAnyTensor& q,
                                        const AttentionOptions& options,
                                        const AttentionOutputs& outputs, Values values,
                                        CacheCall& call);

}  // namespace multihead::engine
