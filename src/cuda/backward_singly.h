// Gradients of one key or one query row by one warp, pair by pair, in f32. The tile kernels use it
// for rows whose gradient is not finite. In a product of tiles, a hidden weight of 0 times a NaN or
// an infinity is NaN, and an f16 gradient of a score may overflow.
#pragma once

#include <cstdint>

#include "cuda/backward_pair.h"
#include "cuda/backward_params.h"
#include "cuda/device/device.h"
#include "cuda/params.h"
#include "cuda/rows.h"
#include "cuda/tiles.h"
#include "rules/attention_params.h"

namespace multihead::cuda {

inline constexpr int kColumnsOfLane = static_cast<int>(kMaxWidth) / kWarpSize;

// A lane's part of a row: elements lane, lane + 32, ...
struct RowPart {
  float of_column[kColumnsOfLane];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kColumnsOfLane; ++n) of_column[n] = 0.0F;
  }
  __device__ __forceinline__ void add(float factor, const rules::StoredRows& rows, int64_t start,
                                      int64_t width) {
#pragma unroll
    for (int n = 0; n < kColumnsOfLane; ++n) {
      const int c = lane() + n * kWarpSize;
      if (c < width) of_column[n] += factor * element(rows.data, rows.type, start + c);
    }
  }
  // True if all elements of the row are NaN.
  __device__ __forceinline__ bool all_nan(int64_t width) const {
    bool all = true;
#pragma unroll
    for (int n = 0; n < kColumnsOfLane; ++n) {
      all = all && (lane() + n * kWarpSize >= width || of_column[n] != of_column[n]);
    }
    return ballot(!all) == 0;
  }
  __device__ __forceinline__ void store(float factor, float* row, int64_t width) const {
#pragma unroll
    for (int n = 0; n < kColumnsOfLane; ++n) {
      const int c = lane() + n * kWarpSize;
      if (c < width) row[c] = of_column[n] * factor;
    }
  }
};

__device__ __forceinline__ float product_of_rows(const rules::StoredRows& a, int64_t a_start,
                                                 const rules::StoredRows& b, int64_t b_start,
                                                 int64_t width) {
  float sum = 0.0F;
  for (int64_t c = lane(); c < width; c += kWarpSize) {
    sum += element(a.data, a.type, a_start + c) * element(b.data, b.type, b_start + c);
  }
  return warp_sum(sum);
}

// Offsets, in elements, of a pair's rows in q, k, v and d_out.
struct PairRows {
  int64_t q, k, v, d_out;
};

__device__ __forceinline__ PairGradient pair_gradient_singly(const BackwardParams& p,
                                                             const Entry& entry,
                                                             const BackwardRow& row, int64_t key,
                                                             PairRows& at) {
  const rules::AttentionParams& call = p.forward.call;
  if (!sees(call, row.row, key)) return {};
  const auto start = [&](const rules::StoredRows& rows, int64_t head, int64_t position) {
    return rules::row_offset(rows.stride, entry.batch, head, position);
  };
  const int64_t kv_head = row.head / call.group();
  at = {start(call.q, row.head, entry.first_query + row.query),
        start(call.k, kv_head, entry.first_key + key),
        start(call.v, kv_head, entry.first_key + key),
        start(p.d_out, row.head, entry.first_query + row.query)};
  const float product = product_of_rows(call.q, at.q, call.k, at.k, call.head_dim);
  const float d_weight = product_of_rows(p.d_out, at.d_out, call.v, at.v, call.value_dim);
  return pair_gradient(call, entry, row, key, product * call.scale.queries, d_weight);
}

// Computes d_k and d_v of a key. `rows`: the query rows of its head that may see it.
__device__ __forceinline__ void write_key_singly(const BackwardParams& p, const Entry& entry,
                                                 int64_t kv_head, int64_t key, RowRange rows,
                                                 bool writes_d_k, bool writes_d_v) {
  const rules::AttentionParams& call = p.forward.call;
  RowPart d_k, d_v;
  d_k.clear();
  d_v.clear();
  for (int64_t r = rows.first; r < rows.last; ++r) {
    const BackwardRow row =
        backward_row(p, entry, kv_head * call.group() + r % call.group(), r / call.group());
    PairRows at{};
    const PairGradient pair = pair_gradient_singly(p, entry, row, key, at);
    if (!pair.visible) continue;
    if (writes_d_k) d_k.add(pair.d_product, call.q, at.q, call.head_dim);
    if (writes_d_v && pair.kept) d_v.add(pair.weight, p.d_out, at.d_out, call.value_dim);
    // Later rows cannot change a NaN. Without this, inputs of NaN would take a hundred times
    // longer.
    if (pair.d_product != pair.d_product && (!writes_d_k || d_k.all_nan(call.head_dim)) &&
        (!writes_d_v || d_v.all_nan(call.value_dim))) {
      break;
    }
  }
  if (writes_d_k) {
    d_k.store(p.scale, p.d_k.row(entry.batch, kv_head, entry.first_key + key), call.head_dim);
  }
  if (writes_d_v) {
    d_v.store(1.0F, p.d_v.row(entry.batch, kv_head, entry.first_key + key), call.value_dim);
  }
}

// Computes d_q of a query row.
__device__ __forceinline__ void write_query_singly(const BackwardParams& p, const Entry& entry,
                                                   int64_t head, int64_t query) {
  const rules::AttentionParams& call = p.forward.call;
  const BackwardRow row = backward_row(p, entry, head, query);
  RowPart d_q;
  d_q.clear();
  for (int64_t key = row.row.seen.first; key < row.row.seen.last; ++key) {
    PairRows at{};
    const PairGradient pair = pair_gradient_singly(p, entry, row, key, at);
    if (pair.visible) d_q.add(pair.d_product, call.k, at.k, call.head_dim);
    if (pair.d_product != pair.d_product && d_q.all_nan(call.head_dim)) break;
  }
  d_q.store(p.scale, p.d_q.row(entry.batch, head, entry.first_query + query), call.head_dim);
}

}  // namespace multihead::cuda
