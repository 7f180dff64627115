// Executes the plans of attention_backward().
#pragma once

#include <cstdint>
#include <span>

#include "engine/attention/plan.h"
#include "engine/error/error.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/status.h"
#include "rules/arena.h"
#include "rules/backward_params.h"
#include "rules/shared.h"

namespace multihead::engine {

// Reserves all memory that run_backward() needs. Errors: kMemory.
MULTIHEAD_SHARED Status reserve_backward(BackwardPlan& plan, const AttentionGradients& gradients,
                                         Context& context);

enum class Lse : uint8_t { kTrusted, kToCheck };

// Finishes the plan for this run, transforms q and k if the plan says so, checks the LSE if asked
// for, runs every job on the context's threads, and transforms the gradients back. `gradients` must
// be the ones passed to plan_backward(). Errors: kMemory, and kOption of an LSE of another call.
Status run_backward(BackwardPlan& plan, const AttentionGradients& gradients, Lse lse,
                    Context& context);

// Lays out the memory that the jobs of a plan share, see BackwardParams.
void lay_out_backward(BackwardPlan& plan, rules::Arena& take);

// The steps of run_backward(), for a finished plan without transforms whose memory is reserved.
// Jobs 0 to plan.jobs() - 1 must begin in that order, on any threads.
MULTIHEAD_SHARED void begin_backward(const BackwardPlan& plan, const AttentionGradients& gradients,
                                     Context& context);
void reset_semaphores(const BackwardPlan& plan);  // a part of begin_backward()
MULTIHEAD_SHARED void run_backward_job(const BackwardPlan& plan, int64_t index, void* scratch);
MULTIHEAD_SHARED void end_backward(const BackwardPlan& plan, const AttentionGradients& gradients,
                                   Context& context);

// d_sink = -(sum over rows of the sink's weight * delta). Without a context on the calling thread.
void differentiate_sinks(const rules::BackwardParams& params, std::span<float> d_sinks,
                         const Context* context);
// Computes the gradients of sinks from results over all keys, whose shape is (B, H_q, N_q, d_v).
// Errors: kMemory.
MULTIHEAD_SHARED Status differentiate_sinks(std::span<const float> sinks,
                                            const AttentionResults& results,
                                            const ConstAnyTensor& d_out, std::span<float> d_sinks,
                                            Context& context);

// Runs attention_backward() for some batch entries and key/value heads, with the bits of the whole
// call. Shapes and options describe the part: masks, biases, lengths, positions, slopes and sinks
// begin at its first entry and head. A part must have all batch entries if they share d_bias or if
// d_sinks is given, and all heads if they share d_bias; d_q_gain and d_k_gain need the whole call.
// If results.check_lse is set, the part with the first entry and head checks the LSE.
Status attention_backward_part(const BackwardCall& call, const BackwardPart& part,
                               Context& context);

// The parts that a call of attention_backward() can be divided into: `batches` runs of batch
// entries times `kv_heads` runs of key/value heads. A run is one entry or head, or all of them if
// they share a gradient.
struct BackwardParts {
  int64_t batches = 0;
  int64_t kv_heads = 0;
  int64_t jobs = 0;       // BackwardPart::jobs
  double operations = 0;  // upper bound of the whole call's multiplications and additions
};

// Checks a call of attention_backward(), except its LSE, and computes how it can be divided. Reads
// options, but no element of a tensor, and writes nothing.
Status divide_backward(const BackwardCall& call, BackwardParts& parts);

// Compares one row's LSE with the row's scores, which are computed here: planning the forward's
// kernel for one row took 17 % of a small backward call. Checks the last query of the first head of
// the first batch entry. The tolerance, 0.05 + 1 % of the LSE, covers bf16 products and the
// rounding of large scores. q and k are already transformed.
Status check_lse(const rules::BackwardParams& params);

}  // namespace multihead::engine
