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

// From the longest range of keys that an entry sees; called again if the lengths change.
rules::SplitGeometry cut_into_splits(const rules::AttentionParams& params,
                                     const cpu::TargetTraits& target);

// d_bias may be given or not. `jobs_of_whole` is BackwardPart::jobs.
rules::BackwardGeometry cut_into_backward(const rules::BackwardParams& params,
                                          const cpu::TargetTraits& target, int64_t jobs_of_whole);

}  // namespace multihead::engine
