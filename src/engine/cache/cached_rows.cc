#include "engine/cache/cached_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "rules/element.h"

namespace multihead::engine {
namespace {

// Calls visit(floats, first, count) for parts of a row of any type.
template <class Visit>
void for_floats(const ConstAnyTensor& from, int64_t at, int64_t width, const Visit& visit) {
  constexpr int64_t kPart = 64;
  float floats[kPart];
  for (int64_t c = 0; c < width; c += kPart) {
    const int64_t count = std::min(kPart, width - c);
    rules::read_floats(from.data, from.dtype, at + c, count, floats);
    visit(floats, c, count);
  }
}

void quantize_row(const ConstAnyTensor& from, int64_t at, int64_t width, int8_t* to, float& scale) {
  float largest = 0.0F;
  for_floats(from, at, width, [&](const float* floats, int64_t, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const float magnitude = std::abs(floats[i]);
      if (std::isnan(largest)) break;
      if (!(magnitude <= largest)) largest = magnitude;
    }
  });
  scale = largest / 127.0F;
  // Integers cannot represent NaN and infinity: the scale becomes NaN or infinite, and with it the
  // whole row.
  const bool finite = std::isfinite(largest);
  // Tiny numbers are enlarged first: 127 / 3.7e-37 would be infinite. Multiplying by a power of two
  // is exact, so the other rows keep their bits.
  const float enlarge = largest < 0x1p-64F ? 0x1p64F : 1.0F;
  const float inverse = largest > 0.0F && finite ? 127.0F / (largest * enlarge) : 0.0F;
  for_floats(from, at, width, [&](const float* floats, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const float scaled = std::clamp(floats[i] * enlarge * inverse, -127.0F, 127.0F);
      to[first + i] = finite ? static_cast<int8_t>(std::nearbyint(scaled)) : int8_t{1};
    }
  });
}

// Computed as an integer, because the address may lie outside of the memory.
const void* before(const void* address, int64_t bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(address) -
                                       static_cast<uintptr_t>(bytes));
}

}  // namespace

int64_t pages_per_entry(const KVCacheConfig& config) {
  return (config.capacity + config.page_size - 1) / config.page_size;
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

void write_row(const ConstAnyTensor& from, int64_t at, int64_t width, const CachedRows& to,
               DType type, int64_t row) {
  if (type == DType::kInt8) {
    auto* const target = reinterpret_cast<int8_t*>(to.rows) + row * width;
    return quantize_row(from, at, width, target, to.scales[row]);
  }
  for_floats(from, at, width, [&](const float* floats, int64_t first, int64_t count) {
    rules::write_floats(floats, count, to.rows, type, row * width + first);
  });
}

}  // namespace multihead::engine
