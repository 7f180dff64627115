// Device code: the weight of one query-key pair, and the gradient of its score. With s: score, r:
// reference, f: scale.softmax, m: dropout factor (0 for a dropped pair), delta: sum of out *
// d_out over the row:
//
//   weight   w    = exp(f (s - r))
//   d_weight      = d_out . v
//   d_score       = w (m d_weight - delta)
//   d_product     = d_score (1 - (capped score / softcap)^2), with softcap only
//
// (FlashAttention-2: Dao, arXiv:2307.08691, algorithm 2, with the derivative of softcap added.)
#pragma once

#include <cstdint>

#include "cuda/backward_params.h"
#include "cuda/device/device.h"
#include "cuda/params.h"
#include "cuda/rows.h"

namespace multihead::cuda {

// One query row of the backward. The default value sees no key.
struct BackwardRow {
  QueryRow row;
  int64_t head = 0, query = 0;
  float reference = 0.0F, delta = 0.0F;  // see BackwardParams
};

__device__ __forceinline__ BackwardRow backward_row(const BackwardParams& p, const Entry& entry,
                                                    int64_t head, int64_t query) {
  const int64_t row = entry.first_query + query;
  return {query_row(p.forward.call, entry, head, query), head, query,
          *p.reference.row(entry.batch, head, row), *p.delta.row(entry.batch, head, row)};
}

struct PairGradient {
  // A hidden pair contributes nothing to any gradient, a dropped pair nothing to d_v. Such pairs
  // are skipped instead of multiplied by zero, because rows may hold NaN.
  bool visible = false, kept = false;
  float weight = 0.0F;     // after dropout
  float d_score = 0.0F;    // gradient of the final score, and so of the bias
  float d_product = 0.0F;  // gradient before the softcap; d_q and d_k sum it * scale
};

// `product`: key . (query * scale.queries). `d_weight`: value . d_out.
__device__ __forceinline__ PairGradient pair_gradient(const rules::AttentionParams& call,
                                                      const Entry& entry, const BackwardRow& row,
                                                      int64_t key, float product, float d_weight) {
  PairGradient pair;
  if (!sees(call, row.row, key)) return pair;
  pair.visible = true;
  pair.kept = !call.dropout.given() || keeps(call, entry, row.head, row.query, key);
  const float capped = capped_score(call, product);
  const float score = biased_score(call, row.row, key, capped);
  const float weight = expf((score - row.reference) * call.scale.softmax);
  pair.weight = weight * call.dropout.scale;
  pair.d_score = weight * ((pair.kept ? d_weight * call.dropout.scale : 0.0F) - row.delta);
  pair.d_product = pair.d_score;
  if (call.softcap > 0.0F) {
    const float ratio = capped / call.softcap;
    pair.d_product *= 1.0F - ratio * ratio;
  }
  return pair;
}

}  // namespace multihead::cuda
