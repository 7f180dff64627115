// Plans a checked call of attention_backward() or attention_varlen_backward(): its kernels and its
// workspace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/backward_params.h"
#include "cuda/kernels.h"
#include "cuda/plan/transforms.h"
#include "cuda/rows/rotate_params.h"
#include "engine/attention/validate.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "multihead/cuda.h"
#include "multihead/status.h"

namespace multihead::cuda {

// The kernel that computes d_q, d_k and d_v.
enum class BackwardKernel : uint8_t {
  kNone,    // no gradient is requested, or all are empty
  kHopper,  // wgmma and TMA
  kMma,     // mma.sync
  kF32,     // supports everything
};

struct BackwardPlan {
  BackwardParams params;
  BackwardKernel kernel = BackwardKernel::kNone;
  // Reasons why the faster kernels do not support the call; null for kernels that were not
  // examined.
  const char* not_hopper = nullptr;
  const char* not_mma = nullptr;
  std::optional<Transforms> transforms;  // of q and k, into the workspace
  // The backward of the transforms: turns gradients of transformed rows into gradients of the
  // original rows.
  std::optional<RotateBackParams> back_q, back_k;
  uint64_t workspace_bytes = 0;
};

// Planning does not read through the addresses of a call.
using engine::BackwardCall;

BackwardPlan plan_backward(const BackwardCall& call, const engine::AttentionShape& shape,
                           const Device& device);

// Plans a call with packed sequences; the tensors have the shapes of attention_varlen_backward().
BackwardPlan plan_packed_backward(const BackwardCall& call, const PackedSequences& sequences,
                                  const Device& device);

// Enqueues the call. The workspace must have at least workspace_bytes.
Status run(BackwardPlan& plan, void* workspace, const Device& device, Stream stream);

std::string explain(const BackwardPlan& plan, const Device& device);

}  // namespace multihead::cuda
