#include "engine/cache/cached_rows.h"

#include <cstddef>
#include <cstdint>

#include "rules/integers.h"

namespace multihead::engine {
namespace {

// Computed as an integer, because the address may lie outside of the memory.
const void* before(const void* address, int64_t bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(address) -
                                       static_cast<uintptr_t>(bytes));
}

}  // namespace

int64_t pages_per_entry(const KVCacheConfig& config) {
  return rules::ceil_div(config.capacity, config.page_size);
}

rules::StoredRows cached_rows(const KVCacheConfig& config, const std::byte* rows,
                              const float* scales, const int32_t* page_table, int64_t width) {
  const bool paged = config.layout == KVCacheConfig::Layout::kPaged;
  rules::StoredRows stored;
  stored.data = rows;
  stored.type = config.type;
  stored.scale_stride =
      paged ? rules::RowStrides{0, 1, config.num_kv_heads}
            : rules::RowStrides{config.num_kv_heads * config.capacity, config.capacity, 1};
  for (size_t axis = 0; axis < 3; ++axis) stored.stride[axis] = stored.scale_stride[axis] * width;
  stored.scales = scales;
  if (config.layout == KVCacheConfig::Layout::kRing) stored.ring = config.capacity;
  if (paged) {
    stored.pages = page_table;
    stored.pages_per_entry = pages_per_entry(config);
    stored.page_size = config.page_size;
  }
  return stored;
}

rules::StoredRows cached_rows(const KVCacheConfig& config, int64_t first_head, int64_t end_head,
                              const CachedRows& stored, const int32_t* page_table, int64_t width) {
  KVCacheConfig of_stored = config;
  of_stored.num_kv_heads = end_head - first_head;
  rules::StoredRows rows = cached_rows(of_stored, stored.rows, stored.scales, page_table, width);
  rows.data = before(stored.rows, first_head * rows.stride[1] * bytes_of(config.type));
  if (stored.scales != nullptr) {
    rows.scales = static_cast<const float*>(
        before(stored.scales, first_head * rows.scale_stride[1] * int64_t{sizeof(float)}));
  }
  return rows;
}

}  // namespace multihead::engine
