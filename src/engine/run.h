// Runs what plan.h has planned.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "engine/plan.h"

namespace multihead::engine {

// All memory that run() would ask for, whatever the lengths.
Status reserve_scratch(const PlannedCall& call, Context& context);
Status reserve_scratch(const AttentionPlan& plan, Context& context);

// Transforms q and k where the call asks for it, then runs every job of the plan on the context's
// threads.
Status run(PlannedCall& call, Context& context);
Status run(const AttentionPlan& plan, Context& context);

// One job of a plan that does not decode, in the memory of one thread. `next` is the thread's
// probable next job, for prefetching; the number of jobs, or more, for none.
void run_block(const AttentionPlan& plan, int64_t index, int64_t next, void* scratch);

}  // namespace multihead::engine
