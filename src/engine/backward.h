// Runs a planned call of attention_backward().
#pragma once

#include <cstdint>

#include "engine/plan.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/status.h"

namespace multihead::engine {

// All memory that run_backward() needs. Errors: kMemory.
Status reserve_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context);

// `gradients` are those that were planned. Errors: kMemory.
Status run_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context);

// The steps of run_backward() of a plan without transforms, whose memory is reserved. The jobs of
// run_backward_job() are plan.geometry.jobs, in any order.
void begin_backward(const BackwardPlan& plan, const AttentionGradients& gradients,
                    Context& context);
void run_backward_job(const BackwardPlan& plan, int64_t index, void* scratch);
void end_backward(const BackwardPlan& plan, const AttentionGradients& gradients, Context& context);

// attention_backward() of results that the library has made itself from these inputs: they are not
// checked again.
Status attention_backward_of_own(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context);

// Some batch entries and key/value heads of a call of attention_backward(), with the bits of the
// whole call. Shapes and options are those of the part: masks, biases, lengths, positions, slopes
// and sinks begin at its first entry and head. A part has all batch entries if d_bias is shared by
// them or d_sinks is given, and all heads if they share d_bias; d_q_gain and d_k_gain need the
// whole call. The part of the first entry and head checks the LSE.
Status attention_backward_part(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionOptions& options,
                               const AttentionResults& results, const ConstAnyTensor& d_out,
                               const AttentionGradients& gradients, const BackwardPart& part,
                               Context& context);

}  // namespace multihead::engine
