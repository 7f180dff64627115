// The gradient of attention with respect to queries, keys and values.
#pragma once

#include "multihead/attention.h"
#include "multihead/context.h"
#include "multihead/status.h"
#include "multihead/tensor.h"

namespace multihead::nn {

// Shapes as in attention(): q, z, d_q and d_z (batch, heads, tokens, width), k, v and their
// gradients with key/value heads; lse (batch, heads, tokens).
struct AttendBackward {
  Tensor q, k, v;
  const AttentionOptions& options;
  Tensor z, lse;  // the results of attention()
  Tensor d_z;
  Tensor d_q, d_k, d_v;
};

// Errors: kMemory.
Status attend_backward(const AttendBackward& call, Context& context);

}  // namespace multihead::nn
