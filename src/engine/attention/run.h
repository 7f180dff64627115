// Runs what plan.h has planned.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "engine/attention/attention_part.h"
#include "engine/attention/plan.h"
#include "rules/shared.h"

namespace multihead::engine {

// The memory that run() needs, whatever the lengths.
Status reserve_scratch(const PlannedCall& call, Context& context);
Status reserve_scratch(const AttentionPlan& plan, Context& context);

// Transforms q and k if the plan says so, then runs every job of the plan on the context's threads.
Status run(PlannedCall& call, Context& context);
MULTIHEAD_SHARED Status run(const AttentionPlan& plan, Context& context);

// The same in a cache that has the key/value heads first_head to end_head - 1 alone, which are
// those of this member of the context's team: the others compute the other heads, and all get all
// results.
Status run_stored_heads(const AttentionPlan& plan, int64_t first_head, int64_t end_head,
                        Context& context);

// Runs the jobs of one part, each for one key/value head.
Status run_part(PlannedCall& call, const AttentionPart& part, Context& context);

// Runs one job of a plan without decoding, in the scratch memory of one thread. `next` is the
// thread's probable next job, for prefetching; at least the number of jobs if there is none.
MULTIHEAD_SHARED void run_block(const AttentionPlan& plan, int64_t index, int64_t next,
                                void* scratch);

// The rows of one batch entry and head of merge_attention().
MULTIHEAD_SHARED void merge_rows(const cpu::MergeParams& params, int64_t batch, int64_t head);

}  // namespace multihead::engine
