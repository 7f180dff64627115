// From a checked call of attention_backward() or attention_varlen_backward() to kernels and the
// memory that they need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/backward.h"
#include "cuda/kernels.h"
#include "cuda/plan/transforms.h"
#include "cuda/rows/rotate.h"
#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "multihead/status.h"

namespace multihead::cuda {

// Computes d_q, d_k and d_v.
enum class BackwardKernel : uint8_t {
  kNone,    // none of them is asked for, or all are empty
  kHopper,  // wgmma and TMA
  kHalf,    // mma.sync
  kF32,     // supports everything
};

struct BackwardPlan {
  BackwardParams params;
  BackwardKernel kernel = BackwardKernel::kNone;
  // Why the earlier kernels do not serve the call; null for those that were not examined.
  const char* not_hopper = nullptr;
  const char* not_half = nullptr;
  std::optional<Transforms> transforms;  // of q and k, into the workspace
  // The gradients of transformed rows become those of the rows before.
  std::optional<RotateBackParams> back_q, back_k;
  uint64_t workspace_bytes = 0;
};

// The operands of a call, of which addresses are not read.
struct BackwardCall {
  const ConstAnyTensor &q, &k, &v;
  const AttentionOptions& options;
  const AttentionResults& results;
  const ConstAnyTensor& d_out;
  const AttentionGradients& gradients;
};

BackwardPlan plan_backward(const BackwardCall& call, const engine::AttentionShape& shape,
                           const Device& device);

// The same for packed sequences, whose tensors are those of attention_varlen_backward().
BackwardPlan plan_packed_backward(const BackwardCall& call, const PackedSequences& sequences,
                                  const Device& device);

// Enqueues the call. The workspace has at least workspace_bytes.
Status run(BackwardPlan& plan, void* workspace, const Device& device, Stream stream);

std::string explain(const BackwardPlan& plan, const Device& device);

}  // namespace multihead::cuda
