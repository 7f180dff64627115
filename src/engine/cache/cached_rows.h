// The rows of a KV cache: where they lie, how tokens are written into them, and the checks and plan
// inputs of attention() over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "multihead/kv_cache.h"
#include "rules/attention_params.h"
#include "rules/shared.h"

namespace multihead::engine {

MULTIHEAD_SHARED int64_t pages_per_entry(const KVCacheConfig& config);

// Describes the keys or values of a cache to the kernels. `width` is the length of a row. Rows
// are numbered (B, H_kv, capacity), or (pages * page_size, H_kv).
MULTIHEAD_SHARED rules::StoredRows cached_rows(const KVCacheConfig& config, const std::byte* rows,
                                               const float* scales, const int32_t* page_table,
                                               int64_t width);

struct CachedRows {
  std::byte* rows;
  float* scales;  // kInt8 only
};

// Describes a cache that stores only the heads first_head to end_head - 1. Kernels still index them
// by their numbers among all heads.
rules::StoredRows cached_rows(const KVCacheConfig& config, int64_t first_head, int64_t end_head,
                              const CachedRows& stored, const int32_t* page_table, int64_t width);

// The keys or the values of the tokens, (B, H_kv, n, width), and the rows that take them.
struct AppendedRows {
  ConstAnyTensor from;
  CachedRows to;
  int64_t width;
};

// Checked tokens of KVCache::append(). The cache has the pages that they need.
struct AppendedTokens {
  KVCacheConfig config;
  int64_t first_head, end_head;      // heads that the cache stores
  std::span<const int32_t> lengths;  // (B), without these tokens
  std::span<const int32_t> counts;   // (B), or empty: every entry takes all tokens
  const int32_t* page_table;         // kPaged
  std::span<const AppendedRows> rows;
};

// Writes the tokens; without a context on the calling thread. In a ring, tokens that later ones of
// the same call overwrite are left out.
void append_rows(const AppendedTokens& tokens, const Context* context);

// Memory of a cache.
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

// Checks attention() of queries over a KV cache, and makes the inputs and options of the plan.
// `keys` is the length of the longest batch entry.
MULTIHEAD_SHARED Status make_cache_call(const KVCacheConfig& config, const CacheMemory& memory,
                                        int64_t keys, const ConstAnyTensor& q,
                                        const AttentionOptions& options,
                                        const AttentionOutputs& outputs, Values values,
                                        CacheCall& call);

}  // namespace multihead::engine
