// QK-norm and RoPE of a call's queries and keys on the device, before its other kernels.
#pragma once

#include <optional>

#include "cuda/params.h"
#include "cuda/rows/rotate_params.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"
#include "multihead/status.h"
#include "rules/arena.h"

namespace multihead::cuda {

struct Transforms {
  RotateParams q, k;
};

// Plans the transforms of q and k (B, H, N, d), or of all packed sequences (1, H, T, d). Returns
// none if the call has neither QK-norm nor RoPE.
std::optional<Transforms> plan_transforms(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                          const AttentionOptions& options,
                                          const ForwardParams& params);

// Reserves memory for the transformed rows in the workspace, and makes the call read them.
void lay_out_transforms(std::optional<Transforms>& transforms, rules::AttentionParams& call,
                        rules::Arena& arena);

Status run_transforms(const std::optional<Transforms>& transforms, Stream stream);

}  // namespace multihead::cuda
