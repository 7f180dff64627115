// Executes the plans of plan.h.
#pragma once

#include <cstdint>

#include "engine/attention/attention_part.h"
#include "engine/attention/plan.h"
#include "rules/shared.h"

namespace multihead::engine {

// Reserves the memory that run() needs for any lengths.
Status reserve_scratch(const ForwardPlan& plan, Context& context);

// Finishes the plan for this run, transforms q and k if the plan says so, then runs every job on
// the context's threads. With a team, its members may divide the heads.
MULTIHEAD_SHARED Status run(ForwardPlan& plan, Context& context);

// Runs the jobs of one part.
Status run_part(ForwardPlan& plan, const AttentionPart& part, Context& context);

// Runs the jobs of a finished plan. q and k are transformed, and scratch memory is reserved.
// Errors: kAborted.
Status execute(const ForwardPlan& plan, Context& context);

// Runs one job of a finished plan that does not decode, in one thread's scratch memory. `next` is
// the thread's probable next job, used for prefetch only; at least the number of jobs if there is
// none.
MULTIHEAD_SHARED void run_block(const ForwardPlan& plan, int64_t index, int64_t next,
                                void* scratch);

// Merges all rows, see merge_attention(). Strides of b may be 0.
MULTIHEAD_SHARED void merge_rows(const Tensor& out_a, const Tensor& lse_a, const ConstTensor& out_b,
                                 const ConstTensor& lse_b, const Context* context);

}  // namespace multihead::engine
