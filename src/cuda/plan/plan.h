// From a checked call to kernels and the memory that they need: which kernel serves a call, and
// why. Nothing after this file chooses anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/f32/decode.h"
#include "cuda/kernels.h"
#include "cuda/plan/transforms.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "engine/cache/cache_call.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"

namespace multihead::cuda {

// Computes out and lse.
enum class Kernel : uint8_t {
  kNone,    // there is nothing to compute
  kDecode,  // few query rows: the keys are split, and the results merged; see SplitParams::half
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
  SplitParams splits;                    // only with kDecode
  std::optional<Transforms> transforms;  // into the workspace
  uint64_t workspace_bytes = 0;
};

// Why mma.sync does not serve q, k and v, in words; null if it does.
const char* objection_to_half(const ForwardParams& params);
// Whether each row begins at a multiple of 16 bytes, for elements of 2 bytes.
bool is_aligned(const rules::StoredRows& rows);

// All packed sequences as one batch entry, and the packed call that set_sequences() makes of it.
engine::AttentionShape shape_of_all(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                    const ConstAnyTensor& v);
void set_sequences(ForwardParams& params, const PackedSequences& sequences);

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

// The current device, or without one an H100.
Device device_to_explain();

// Enqueues the call. The workspace has at least workspace_bytes.
Status run(CallPlan& plan, void* workspace, const Device& device, Stream stream);

std::string explain(const CallPlan& plan, const Device& device);

}  // namespace multihead::cuda
