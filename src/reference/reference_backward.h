// The oracle of attention_backward(): the chain rule on attention's definition, in double.
#pragma once

#include <vector>

#include "multihead/attention.h"

namespace multihead::reference {

// Contiguous, with the shapes of AttentionGradients.
struct ReferenceGradients {
  std::vector<double> d_q, d_k, d_v;
  std::vector<double> d_bias;              // shape of the bias; empty without a bias
  std::vector<double> d_sinks;             // (H_q); empty without sinks
  std::vector<double> d_q_gain, d_k_gain;  // (d_k), also if the call has no gains
};

// The arguments must be legal for attention(); d_out is (B, H_q, N_q, d_v).
ReferenceGradients attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                      const ConstAnyTensor& v, const AttentionOptions& options,
                                      const ConstAnyTensor& d_out);

}  // namespace multihead::reference
