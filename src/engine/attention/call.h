// The tensors and options of a call, as checks and plans read them. Calls refer to the caller's
// objects, which must outlive them.
#pragma once

#include "multihead/attention.h"
#include "multihead/attention_backward.h"

namespace multihead::engine {

struct ForwardCall {
  const ConstAnyTensor &q, &k, &v;
  const AttentionOptions& options;
  const AttentionOutputs& outputs;
};

struct BackwardCall {
  const ConstAnyTensor &q, &k, &v;
  const AttentionOptions& options;
  const AttentionResults& results;
  const ConstAnyTensor& d_out;
  const AttentionGradients& gradients;
};

}  // namespace multihead::engine
