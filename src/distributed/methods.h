// The methods of attention over several ranks and of its gradients, after the ranks agreed on the
// call.
#pragma once

#include <algorithm>

#include "distributed/shard_memory.h"
#include "distributed/tiles.h"
#include "multihead/attention_backward.h"

namespace multihead::distributed {

// Each writes the rank's rows to `total`, in the communicator's memory and without the sinks.
Status ring_attention(const Task& task, PartialResult& total);
Status gathered_attention(const Task& task, PartialResult& total);
Status heads_attention(const Task& task, PartialResult& total);
Status decode_attention(const Task& task, PartialResult& total);

// A rank's rows of the forward results that its gradients need: (B, H, n, d_v) and (B, H, n).
struct BackwardInputs {
  ConstAnyTensor out, d_out;
  ConstTensor lse;
};

// Sums of gradients, f32 and contiguous: of queries, of one shard's keys and values, and of the
// bias.
struct GradientSums {
  Tensor d_q, d_k, d_v, d_bias;
};

inline void set_zero(const GradientSums& sums) {
  for (const Tensor& tensor : {sums.d_q, sums.d_k, sums.d_v, sums.d_bias}) {
    if (tensor.given()) std::fill_n(tensor.data, tensor.shape.elements(), 0.0F);
  }
}

// Adds the gradients of these queries and of one chunk of keys and values. `part` is scratch of the
// same shapes as `total`.
Status add_gradients(const Task& task, const BackwardInputs& inputs, const TileOperands& operands,
                     const GradientSums& part, const GradientSums& total);

// Each writes the gradients of this rank's rows to `total`, before the backward of QK-norm and
// RoPE.
Status ring_backward(const Task& task, const BackwardInputs& inputs, GradientSums& total);
Status gathered_backward(const Task& task, const BackwardInputs& inputs, GradientSums& total);
Status heads_backward(const Task& task, const BackwardInputs& inputs, GradientSums& total);

}  // namespace multihead::distributed
