// The tile scheduler: divides a call into jobs, each with some query rows, heads and keys.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/target.h"
#include "rules/attention_params.h"
#include "rules/backward_params.h"
#include "rules/tiling.h"

namespace multihead::engine {

// Decides everything except copies of V for unaligned addresses, see may_copy_split_lines().
rules::BlockTiling tile_blocks(const rules::AttentionParams& params,
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
rules::BlockTiling divide_for_threads(const rules::AttentionParams& params,
                                      rules::BlockTiling tiling, int threads);

// Decides the tiles of decoding, but not the splits of the keys.
rules::SplitTiling tile_splits(const rules::AttentionParams& params,
                               const cpu::TargetTraits& target);

// Splits the range of keys that each batch entry sees, by the lengths at this moment: sets
// `splits`, `split_keys` and `jobs`.
void split_keys(const rules::AttentionParams& params, rules::SplitTiling& tiling);

// d_bias is optional. `jobs_of_whole` is BackwardPart::jobs.
rules::BackwardTiling tile_backward(const rules::BackwardParams& params,
                                    const cpu::TargetTraits& target, int64_t jobs_of_whole);

}  // namespace multihead::engine
