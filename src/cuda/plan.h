// From a checked call to kernels and the memory that they need: which kernel serves a call, and
// why. Nothing after this file chooses anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/decode.h"
#include "cuda/kernels.h"
#include "cuda/rotate.h"
#include "engine/cache_call.h"
#include "engine/plan.h"
#include "engine/validate.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"

namespace multihead::cuda {

// Computes out and lse.
enum class Kernel : uint8_t {
  kNone,    // there is nothing to compute
  kDecode,  // few query rows: the keys are split, and the results merged
  kHopper,  // wgmma and TMA
  kHalf,    // mma.sync
  kF32,     // supports everything
};

struct CallPlan {
  ForwardParams params;
  Kernel kernel = Kernel::kNone;
  // Why the earlier kernels do not serve the call; null for those that were not examined.
  const char* not_decode = nullptr;
  const char* not_hopper = nullptr;
  const char* not_half = nullptr;
  SplitParams splits;  // only with kDecode
  // RoPE and QK-norm of q and k before, into the workspace.
  std::optional<RotateParams> rotate_q, rotate_k;
  uint64_t workspace_bytes = 0;
};

// q, k and v, as tensors. Addresses are only looked at for their alignment.
CallPlan plan_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                   const engine::AttentionShape& shape, const AttentionOptions& options,
                   const AttentionOutputs& outputs, const Device& device);

// The same for packed sequences; q, k and v are (T, H, d).
CallPlan plan_packed(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const PackedSequences& sequences, const AttentionOptions& options,
                     const AttentionOutputs& outputs, const Device& device);

// Attention over a cache.
CallPlan plan_cache(const engine::CacheCall& call, const AttentionOutputs& outputs,
                    int64_t pool_pages, const Device& device);

// Enqueues the call. The workspace has at least workspace_bytes.
Status run(CallPlan& plan, void* workspace, const Device& device, Stream stream);

std::string explain(const CallPlan& plan, const Device& device);

}  // namespace multihead::cuda
