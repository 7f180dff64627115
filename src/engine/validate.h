// The only place that refuses input. What passes here is legal for every later step.
#pragma once

#include "multihead/attention.h"

namespace multihead::engine {

struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, key_width = 0, value_width = 0;
};

Status validate_attention(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                          const AttentionOptions& options, const AttentionOutputs& outputs,
                          AttentionShape& shape);

Status validate_linear(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias,
                       const Tensor& y);

// Options that apply whatever the shapes; shared with modules that call attention().
Status validate_options(const AttentionOptions& options);

// mask or bias against (B, H_q, N_q, N_k).
template <class T>
Status validate_broadcast(const char* argument, const TensorView<T>& view, const Dims& scores);

// A tensor of exactly this shape: rank, extents, strides and data.
template <class T>
Status validate_exact(const char* argument, const char* letters, const TensorView<T>& tensor,
                      const Dims& shape);

}  // namespace multihead::engine
