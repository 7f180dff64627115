// Writes new tokens into the rows of a KV cache.
#pragma once

#include <cstdint>
#include <span>

#include "engine/cache/cached_rows.h"
#include "multihead/kv_cache.h"

namespace multihead::engine {

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

}  // namespace multihead::engine
