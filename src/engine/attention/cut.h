// Cuts a call into jobs: how many query rows, heads and keys one job takes.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "rules/geometry.h"

namespace multihead::engine {

// Decides everything except copies of V for unaligned addresses, see may_copy_split_lines().
rules::BlockGeometry cut_into_blocks(const rules::AttentionParams& params,
                                     const cpu::TargetTraits& target);

// True if copying V is faster for blocks of `rows` rows when V's rows do not start at cache lines.
// Does not read `params.v.data`.
bool may_copy_split_lines(const rules::AttentionParams& params, int64_t rows,
                          const cpu::TargetTraits& target);

// True if some rows of V do not start at cache lines.
bool splits_cache_lines(const rules::StoredRows& v);

// Divides the blocks further if there are fewer than 8 jobs per thread. Panels of rows stay whole,
// and a panel's bits do not depend on its block, with two exceptions: blocks that begin at
// different keys (windows, caches that have dropped keys), and products of bf16 pairs, where a
// row's NaN changes how its whole block is computed.
rules::BlockGeometry cut_for_threads(const rules::AttentionParams& params,
                                     rules::BlockGeometry geometry, const cpu::TargetTraits& target,
                                     int threads);

// Splits the range of keys that each batch entry sees. Called again if the lengths change.
rules::SplitGeometry cut_into_splits(const rules::AttentionParams& params,
                                     const cpu::TargetTraits& target);

// d_bias is optional. `jobs_of_whole` is BackwardPart::jobs.
rules::BackwardGeometry cut_into_backward(const rules::BackwardParams& params,
                                          const cpu::TargetTraits& target, int64_t jobs_of_whole);

}  // namespace multihead::engine
