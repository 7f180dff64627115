#include "engine/cache/cache_call.h"

#include <cstdint>

#include "engine/cache/cached_rows.h"

namespace multihead::engine {

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
