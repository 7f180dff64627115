// Runs the plans of plan.h.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "engine/attention/attention_part.h"
#include "engine/attention/plan.h"
#include "rules/shared.h"

namespace multihead::engine {

// Reserves the memory that run() needs for any lengths.
Status reserve_scratch(const PlannedCall& call, Context& context);
Status reserve_scratch(const AttentionPlan& plan, Context& context);

// Transforms q and k if the plan says so, then runs every job of the plan on the context's threads.
Status run(PlannedCall& call, Context& context);
MULTIHEAD_SHARED Status run(const AttentionPlan& plan, Context& context);

// Runs a plan on a cache that stores only the key/value heads first_head to end_head - 1, which
// this member of the context's team computes. The members exchange their heads, so all get all
// results.
Status run_stored_heads(const AttentionPlan& plan, int64_t first_head, int64_t end_head,
                        Context& context);

// Runs the jobs of one part, each for one key/value head.
Status run_part(PlannedCall& call, const AttentionPart& part, Context& context);

// Runs one job of a plan that does not decode, in one thread's scratch memory. `next` is the
// thread's probable next job, used for prefetch only; at least the number of jobs if there is none.
MULTIHEAD_SHARED void run_block(const AttentionPlan& plan, int64_t index, int64_t next,
                                void* scratch);

// Merges all rows, see merge_attention(), on up to `threads` threads.
MULTIHEAD_SHARED void merge_rows(const cpu::MergeParams& params, int threads);

}  // namespace multihead::engine
