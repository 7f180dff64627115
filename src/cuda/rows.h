// Device code: reads and writes rows of any storage type, reduces within a warp, and computes the
// score of one query-key pair with every option.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/device/device.h"
#include "cuda/params.h"
#include "rules/dropout_mask.h"

namespace multihead::cuda {

inline constexpr float kLog2E = 1.4426950408889634F;

// Finds the row that stores a token: `row_index` counts along the third axis. Returns false if its
// page number is outside the pool, so that the row does not exist.
__device__ __forceinline__ bool find_row(const rules::StoredRows& rows, int64_t pool_pages,
                                         int64_t batch, int64_t position, int64_t& row_index) {
  row_index = position;
  if (rows.ring != 0) {
    row_index = position % rows.ring;
  } else if (rows.pages != nullptr) {
    const int64_t page = rows.pages[batch * rows.pages_per_entry + position / rows.page_size];
    if (page < 0 || page >= pool_pages) return false;
    row_index = page * rows.page_size + position % rows.page_size;
  }
  return true;
}

// Element `at` of an array, as float. int8 is not multiplied by its scale.
__device__ __forceinline__ float element(const void* data, DType type, int64_t at) {
  switch (type) {
    case DType::kF16:
      return to_float(static_cast<const Float16*>(data)[at]);
    case DType::kBF16:
      return to_float(static_cast<const BFloat16*>(data)[at]);
    case DType::kInt8:
      return to_float(static_cast<const int8_t*>(data)[at]);
    case DType::kF32:
      break;
  }
  return static_cast<const float*>(data)[at];
}

__device__ __forceinline__ void set_element(void* data, DType type, int64_t at, float value) {
  if (type == DType::kF16) {
    static_cast<Float16*>(data)[at] = from_float<Float16>(value);
  } else if (type == DType::kBF16) {
    static_cast<BFloat16*>(data)[at] = from_float<BFloat16>(value);
  } else {
    static_cast<float*>(data)[at] = value;
  }
}

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const float other = shuffle_xor(value, mask);
    // A NaN of either lane stays.
    value = other > value || other != other ? other : value;
  }
  return value;
}

// The mask, the bias and ALiBi of one query row. Addresses are of key 0, or null.
struct RowTerms {
  const uint8_t* mask = nullptr;
  const float* bias = nullptr;
  float slope = 0.0F;
  int64_t alibi_position = 0;  // the distance of key j is |alibi_position - j|
};

__device__ __forceinline__ RowTerms row_terms(const rules::AttentionParams& call,
                                              const Entry& entry, int64_t head, int64_t query) {
  RowTerms row;
  if (call.mask.given()) row.mask = call.mask.row(entry.batch, head, query);
  if (call.bias.given()) row.bias = call.bias.row(entry.batch, head, query);
  if (call.alibi_slopes != nullptr) row.slope = call.alibi_slopes[head];
  row.alibi_position = query + entry.alibi_shift;
  return row;
}

// A query row, with the keys that it sees by position.
struct QueryRow : RowTerms {
  rules::KeyRange seen;
};

__device__ __forceinline__ QueryRow query_row(const rules::AttentionParams& call,
                                              const Entry& entry, int64_t head, int64_t query) {
  return {row_terms(call, entry, head, query), entry.visibility.seen_by(query)};
}

__device__ __forceinline__ bool sees(const rules::AttentionParams& call, const QueryRow& row,
                                     int64_t key) {
  if (!row.seen.contains(key)) return false;
  if (row.mask != nullptr && row.mask[key * call.mask.stride[3]] == 0) return false;
  return row.bias == nullptr || row.bias[key * call.bias.stride[3]] != -INFINITY;
}

// Steps 2 and 3 at the head of multihead/attention.h, without scale.softmax. `product`: key .
// (query * scale.queries).
__device__ __forceinline__ float capped_score(const rules::AttentionParams& call, float product) {
  const float score = product * call.scale.scores;
  return call.softcap > 0.0F ? call.softcap * tanhf(score / call.softcap) : score;
}

// Step 4 at the head of multihead/attention.h: adds the bias and ALiBi.
__device__ __forceinline__ float biased_score(const rules::AttentionParams& call,
                                              const QueryRow& row, int64_t key, float score) {
  if (row.bias != nullptr) score += row.bias[key * call.bias.stride[3]];
  if (call.alibi_slopes != nullptr) {
    const int64_t distance = row.alibi_position - key;
    score -= row.slope * static_cast<float>(distance < 0 ? -distance : distance);
  }
  return score;
}

__device__ __forceinline__ bool keeps(const rules::AttentionParams& call, const Entry& entry,
                                      int64_t head, int64_t query, int64_t key) {
  return rules::dropout_keeps(entry.dropout_seed, call.first.batch + entry.batch,
                              call.first.head + head, call.first.query + query,
                              call.first.key + key, call.dropout.threshold);
}

}  // namespace multihead::cuda
