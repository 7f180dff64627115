// The parameters of the CUDA kernels, and the batch entry or packed sequence of a block. Kernels
// get the parameters by value. Addresses point to device memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rules/attention_params.h"
#include "rules/visibility.h"

namespace multihead::cuda {

// One call of attention() or attention_varlen().
struct ForwardParams {
  // Kernels that compute `out` and `lse` ignore captures, weights and dropout_mask, which separate
  // kernels compute (scores.cu).
  rules::AttentionParams call;
  // Packed sequences: (call.batch + 1) row numbers, where each sequence begins and the last one
  // ends; null for batch entries. With packed sequences, call.queries and call.keys are upper
  // limits for the rows of one sequence.
  const int32_t* cu_q = nullptr;
  const int32_t* cu_k = nullptr;
  int64_t packed_queries = 0, packed_keys = 0;  // rows of all sequences
};
// Kernel parameters may have at most 4096 bytes before CUDA 12.1 and on GPUs older than Volta.
static_assert(std::is_trivially_copyable_v<ForwardParams> && sizeof(ForwardParams) <= 4096);

// Extents of q, k, v, out and lse as they are stored: packed sequences are one batch entry.
struct Extents {
  int64_t batch, queries, keys;
};
constexpr Extents extents_of(const ForwardParams& params) {
  if (params.cu_q != nullptr) return {1, params.packed_queries, params.packed_keys};
  return {params.call.batch, params.call.queries, params.call.keys};
}

// One batch entry, or one packed sequence.
struct Entry {
  int64_t batch;                   // index for strides and dropout; 0 for a packed sequence
  int64_t first_query, first_key;  // added to row numbers of q, out and lse, or of k and v
  int64_t queries, keys;           // 0 or more
  rules::EntryVisibility visibility;
  int64_t alibi_shift;  // the distance of query i from key j is |i + alibi_shift - j|
  uint64_t dropout_seed;
};

constexpr Entry entry_of_batch(const rules::AttentionParams& call, int64_t index) {
  return {.batch = index,
          .first_query = 0,
          .first_key = 0,
          .queries = call.queries,
          .keys = call.keys,
          .visibility = call.visibility.entry(index),
          .alibi_shift = call.visibility.alibi_shift(index),
          .dropout_seed = call.dropout.seed};
}

// `index` is less than call.batch. Values in device memory cannot be checked before the call, so
// this function limits the rows of packed sequences, and the visibility rule limits lengths, to the
// memory of the call.
constexpr Entry entry_of(const ForwardParams& params, int64_t index) {
  const rules::AttentionParams& call = params.call;
  if (params.cu_q == nullptr) return entry_of_batch(call, index);
  const auto start = [](const int32_t* cu, int64_t sequence, int64_t rows) {
    return rules::limited(cu[sequence], 0, rows);
  };
  const int64_t first_query = start(params.cu_q, index, params.packed_queries);
  const int64_t first_key = start(params.cu_k, index, params.packed_keys);
  const int64_t queries = start(params.cu_q, index + 1, params.packed_queries) - first_query;
  const int64_t keys = start(params.cu_k, index + 1, params.packed_keys) - first_key;
  rules::Visibility visibility = call.visibility;
  visibility.queries = rules::limited(queries, 0, call.queries);
  visibility.keys = visibility.shard_keys = rules::limited(keys, 0, call.keys);
  // Each sequence needs its own dropout seed, else all sequences would drop the same weights.
  return {.batch = 0,
          .first_query = first_query,
          .first_key = first_key,
          .queries = visibility.queries,
          .keys = visibility.keys,
          .visibility = visibility.entry(0),
          .alibi_shift = visibility.alibi_shift(0),
          .dropout_seed = call.dropout.seed + (static_cast<uint64_t>(index) << 32U)};
}

}  // namespace multihead::cuda
