// Runs a planned call of attention_backward().
#pragma once

#include "engine/plan.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/status.h"

namespace multihead::engine {

// All memory that run_backward() needs. Errors: kMemory.
Status reserve_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context);

// `gradients` are those that were planned. Errors: kMemory.
Status run_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context);

}  // namespace multihead::engine
