// Cuts a call into jobs: how many query rows, heads and keys one job takes.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "rules/geometry.h"

namespace multihead::engine {

// Without copies of V that only its address asks for, see splits_cache_lines().
rules::BlockGeometry cut_into_blocks(const rules::AttentionParams& params,
                                     const cpu::TargetTraits& target);

// Whether blocks of so many rows are faster with a copy of V if its rows do not start at cache
// lines. `params.v.data` is not read.
bool may_copy_split_lines(const rules::AttentionParams& params, int64_t rows,
                          const cpu::TargetTraits& target);

// Whether rows of V do not start at cache lines.
bool splits_cache_lines(const rules::StoredRows& v);

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
