// The oracle: attention by its definition, in double, with Eigen. Short, plain and slow on purpose.
// It takes the same options object as the kernels, and decides by itself which keys are visible.
#pragma once

#include <vector>

#include "multihead/attention.h"

namespace multihead::reference {

struct ReferenceOutputs {
  std::vector<double> out;      // (B, H_q, N_q, d_v)
  std::vector<double> lse;      // (B, H_q, N_q)
  std::vector<double> weights;  // (B, H_q, N_q, N_k), before dropout
  // Optional, (B, H_q, N_q, N_k). Raw and capped scores include hidden keys, but are -inf beyond
  // kv_lengths; masked scores are -inf for every hidden key.
  std::vector<double> raw, capped, masked;

  const std::vector<double>& stage(ScoreStage stage) const;
};

// The arguments must be legal for attention().
ReferenceOutputs attention(const ConstAnyTensor& q, const ConstAnyTensor& k,
                           const ConstAnyTensor& v, const AttentionOptions& options,
                           bool with_stages = false);

}  // namespace multihead::reference
