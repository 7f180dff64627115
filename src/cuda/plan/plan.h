// Plans a checked call: which kernel serves it and why, and the workspace. Code after the plan
// chooses no kernel.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "cuda/kernels.h"
#include "cuda/plan/transforms.h"
#include "cuda/splits.h"
#include "engine/attention/plan.h"
#include "engine/attention/validate.h"
#include "engine/cache/cached_rows.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"

namespace multihead::cuda {

// The kernel that computes out and lse.
enum class Kernel : uint8_t {
  kNone,    // there is nothing to compute
  kDecode,  // few query rows: split KV, then merge; see SplitParams::mma
  kHopper,  // wgmma and TMA
  kMma,     // mma.sync
  kF32,     // supports everything
};

struct CallPlan {
  ForwardParams params;
  Kernel kernel = Kernel::kNone;
  // Reasons why the faster kernels do not support the call; null for kernels that were not
  // examined.
  const char* not_decode = nullptr;
  const char* not_hopper = nullptr;
  const char* not_mma = nullptr;
  SplitParams splits;                    // only with kDecode
  std::optional<Transforms> transforms;  // write q and k to the workspace
  uint64_t workspace_bytes = 0;
};

// Returns the reason why mma.sync does not support q, k and v; null if it does.
const char* why_not_mma(const ForwardParams& params);
// True if each row begins at a multiple of 16 bytes, for elements of 2 bytes. `extents`: batch,
// heads and rows; the stride of an axis of extent 1 does not matter.
bool is_aligned(const rules::StoredRows& rows, const std::array<int64_t, 3>& extents);

// shape_of_all(): the shape of all packed sequences as one batch entry. set_sequences() then turns
// a call of that shape into a packed call.
engine::AttentionShape shape_of_all(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                    const ConstAnyTensor& v);
void set_sequences(ForwardParams& params, const PackedSequences& sequences);

// q, k and v are tensors. Planning reads their addresses only to check alignment.
CallPlan plan_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                   const engine::AttentionShape& shape, const AttentionOptions& options,
                   const AttentionOutputs& outputs, const Device& device);

// Plans a call with packed sequences; q, k and v are (T, H, d).
CallPlan plan_packed(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const PackedSequences& sequences, const AttentionOptions& options,
                     const AttentionOutputs& outputs, const Device& device);

// Plans attention over a cache.
CallPlan plan_cache(const engine::CacheCall& call, const AttentionOutputs& outputs,
                    int64_t pool_pages, const Device& device);

// Returns the current device, or an H100 if there is none.
Device device_to_explain();

// Enqueues the call. The workspace must have at least workspace_bytes.
Status run(CallPlan& plan, void* workspace, const Device& device, Stream stream);

std::string explain(const CallPlan& plan, const Device& device);

}  // namespace multihead::cuda
