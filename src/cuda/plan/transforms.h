// QK-norm and RoPE of the queries and keys of a call on the device, before its other kernels.
#pragma once

#include <optional>

#include "cuda/params.h"
#include "cuda/rows/rotate.h"
#include "multihead/attention.h"
#include "multihead/cuda.h"
#include "multihead/status.h"
#include "rules/arena.h"

namespace multihead::cuda {

struct Transforms {
  RotateParams q, k;
};

// Of q and k (B, H, N, d), or of all packed sequences (1, H, T, d); none if the call has neither.
std::optional<Transforms> plan_transforms(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                          const AttentionOptions& options,
                                          const ForwardParams& params);

// Takes the memory of the transformed rows, and makes the call read them.
void lay_out_transforms(std::optional<Transforms>& transforms, rules::AttentionParams& call,
                        rules::Arena& arena);

Status run_transforms(const std::optional<Transforms>& transforms, Stream stream);

}  // namespace multihead::cuda
