// Gradients of a call over several ranks.
#pragma once

#include <algorithm>
#include <span>

#include "distributed/call.h"
#include "distributed/communicator.h"
#include "distributed/rectangles.h"
#include "distributed/transport.h"
#include "multihead/attention_backward.h"

namespace multihead::distributed {

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

// Adds the gradients of q's rows and of one chunk of keys and values. `part` is scratch of the same
// shapes.
struct BackwardOperands {
  ConstAnyTensor q, k, v;
  std::span<const Segment> queries;
  Chunk keys;
};
Status add_gradients(const Call& call, const Heads& heads, const AttentionOptions& of_heads,
                     const BackwardInputs& inputs, const BackwardOperands& operands,
                     const GradientSums& part, const GradientSums& total, Transport& transport,
                     Context& context);

inline void set_zero(const Tensor& contiguous) {
  if (!contiguous.given()) return;
  std::fill_n(contiguous.data, contiguous.shape.elements(), 0.0F);
}

// The methods. Each writes this rank's rows to `total`, before the backward of QK-norm and RoPE.
Status ring_backward(const Call& call, const BackwardInputs& inputs, const Shards& shards,
                     Communicator::Internals& ranks, Context& context, GradientSums& total);
Status gathered_backward(const Call& call, const BackwardInputs& inputs, const Shards& shards,
                         Communicator::Internals& ranks, Context& context, GradientSums& total);

Status heads_backward(const Call& call, const BackwardInputs& inputs, const Shards& shards,
                      Communicator::Internals& ranks, Context& context, GradientSums& total);

}  // namespace multihead::distributed
