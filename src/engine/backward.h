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

// attention_backward() of results that the library has made itself from these inputs: they are not
// checked again.
Status attention_backward_of_own(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context);

}  // namespace multihead::engine
