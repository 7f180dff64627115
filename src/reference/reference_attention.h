// The oracle: attention by its definition, in double, with Eigen. Short, plain and slow on
// purpose. It takes the same options object as the kernels.
#pragma once

#include <vector>

#include "multihead/attention.h"

namespace multihead::reference {

struct ReferenceOutputs {
  std::vector<double> out;      // (B, H_q, N_q, d_v)
  std::vector<double> lse;      // (B, H_q, N_q)
  std::vector<double> weights;  // (B, H_q, N_q, N_k)
};

// The arguments must be legal for attention().
ReferenceOutputs attention(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                           const AttentionOptions& options);

}  // namespace multihead::reference
