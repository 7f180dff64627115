// Cuts a call into jobs: how many query rows, heads and keys one job takes.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "rules/geometry.h"

namespace multihead::engine {

rules::BlockGeometry cut_into_blocks(const rules::AttentionParams& params,
                                     const cpu::TargetTraits& target);

// The same blocks divided further, where many threads would have too few. Panels of rows stay
// whole, and a panel's bits do not depend on the block that it is in, unless blocks begin at
// different keys (windows, caches that have dropped keys), or one row's NaN changes how its block
// is computed (products of bf16 pairs).
rules::BlockGeometry cut_for_threads(const rules::AttentionParams& params,
                                     rules::BlockGeometry geometry, const cpu::TargetTraits& target,
                                     int threads);

// From the ranges of keys that the entries see; called again if the lengths change.
rules::SplitGeometry cut_into_splits(const rules::AttentionParams& params,
                                     const cpu::TargetTraits& target);

// d_bias may be given or not. `jobs_of_whole` is BackwardPart::jobs.
rules::BackwardGeometry cut_into_backward(const rules::BackwardParams& params,
                                          const cpu::TargetTraits& target, int64_t jobs_of_whole);

}  // namespace multihead::engine
