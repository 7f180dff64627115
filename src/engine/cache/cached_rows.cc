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

Status make_cache_call(const KVCacheConfig& config, const CacheMemory& memory, int64_t keys,
                       const ConstAnyTensor& q, const AttentionOptions& options,
                       const AttentionOutputs& outputs, Values values, CacheCall& call) {
  MULTIHEAD_TRY(validate_rank(Name::kQ, Axes::kQ, q, 4));
  const Dims of_cache{config.batch, q.shape[1], q.shape[2], config.head_dim};
  MULTIHEAD_TRY(validate_exact(Name::kQ, Axes::kQ, q, of_cache));
  const int64_t heads = q.shape[1], kv_heads = config.num_kv_heads;
  if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
    return shape_error(Name::kQ, Message::kHeadsOfCache, kv_heads, heads);
  }
  // k and v only carry shapes for the checks below: the cache has another layout.
  const Dims k_shape{config.batch, config.num_kv_heads, keys, config.head_dim};
  const Dims v_shape{config.batch, config.num_kv_heads, keys, config.value_dim};
  const ConstAnyTensor k(memory.keys, DType::kF32, k_shape, contiguous_strides(k_shape));
  const ConstAnyTensor v(memory.values, DType::kF32, v_shape, contiguous_strides(v_shape));
  MULTIHEAD_TRY(validate_inputs(q, k, v, call.shape));
  if (!options.kv_lengths.empty()) {
    return option_error(Name::kKvLengths, Message::kLengthsOfCache);
  }
  if (options.rope.given() || options.qk_norm.given()) {
    return option_error(options.qk_norm.given() ? Name::kQkNorm : Name::kRope,
                        Message::kTransformOfCache);
  }
  if (options.causal.given() && options.causal.alignment != Alignment::kBottomRight) {
    return option_error(Name::kCausal, Message::kAlignmentOfCache);
  }
  if (options.window.alignment != Alignment::kNone &&
      options.window.alignment != Alignment::kBottomRight) {
    return option_error(Name::kWindowAlignment, Message::kAlignmentOfCache);
  }
  // The queries are the newest tokens of each entry.
  call.options = options;
  call.options.kv_lengths = memory.lengths;
  const bool causal = options.causal.given();
  if (causal) call.options.causal = Causal::bottom_right_of_length();
  if (options.window.alignment != Alignment::kNone || (options.window.given() && !causal)) {
    call.options.window.alignment = Alignment::kBottomRightOfLength;
  }
  MULTIHEAD_TRY(validate_options(call.options, call.shape, values));
  MULTIHEAD_TRY(validate_outputs(outputs, call.shape));
  call.inputs.q = stored_rows(q);
  call.inputs.k =
      cached_rows(config, memory.keys, memory.key_scales, memory.page_table, config.head_dim);
  call.inputs.v = cached_rows(config, memory.values, memory.value_scales, memory.page_table,
                              config.values_in_keys ? config.head_dim : config.value_dim);
  call.inputs.firsts = memory.firsts;
  return {};
}

}  // namespace multihead::engine
