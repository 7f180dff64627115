// Runs a planned call of attention_backward().
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/attention/plan.h"
#include "multihead/attention_backward.h"
#include "multihead/context.h"
#include "multihead/status.h"
#include "rules/arena.h"
#include "rules/shared.h"

namespace multihead::engine {

// Reserves all memory that run_backward() needs. Errors: kMemory.
MULTIHEAD_SHARED Status reserve_backward(BackwardPlan& plan, const AttentionGradients& gradients,
                                         Context& context);

// `gradients` must be the ones passed to plan_backward(). Errors: kMemory.
Status run_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context);

// Compares one row's LSE with the row's scores, to refuse an LSE of other inputs or options. Checks
// the last query of the first head of the first batch entry. The tolerance, 0.05 + 1 % of the LSE,
// covers bf16 products and the rounding of large scores.
struct CheckedRow {
  CheckedRow(const ConstAnyTensor& q, const ConstAnyTensor& k, const AttentionOptions& options,
             const AttentionShape& shape);

  // Number of the row's scores that check() reads: N_k, or 0 if the LSE has a closed form.
  int64_t scores() const { return closed_form.has_value() ? 0 : k.shape[2]; }
  // Captures the row's scores, N_k floats.
  ScoreCapture capture(float* scores) const {
    return {.stage = ScoreStage::kMasked, .out = {scores, {1, 1, 1, k.shape[2]}}, .first_row = row};
  }
  Status check(std::span<const float> scores, float lse) const;

  ConstAnyTensor q, k;       // of that head
  AttentionOptions options;  // of that head
  int64_t row;
  bool exists;
  std::optional<float> closed_form;  // the LSE, if it has one
};

// Lays out the memory that the jobs of a plan share, see BackwardParams.
void lay_out_backward(BackwardPlan& plan, rules::Arena& take);

// The steps of run_backward(), for a plan without transforms whose memory is reserved. Jobs 0 to
// plan.geometry.jobs - 1 must begin in that order, on any threads.
MULTIHEAD_SHARED void begin_backward(const BackwardPlan& plan, const AttentionGradients& gradients,
                                     Context& context);
void begin_turns(const BackwardPlan& plan);  // a part of begin_backward()
MULTIHEAD_SHARED void run_backward_job(const BackwardPlan& plan, int64_t index, void* scratch);
MULTIHEAD_SHARED void end_backward(const BackwardPlan& plan, const AttentionGradients& gradients,
                                   Context& context);

// d_sink = -(sum over rows of the sink's weight * delta), on up to `threads` threads.
void differentiate_sinks(const rules::BackwardParams& params, std::span<float> d_sinks,
                         int threads);
// The same from results over all keys, whose shape is (B, H_q, N_q, d_v). Errors: kMemory.
MULTIHEAD_SHARED Status differentiate_sinks(std::span<const float> sinks,
                                            const AttentionResults& results,
                                            const ConstAnyTensor& d_out, std::span<float> d_sinks,
                                            Context& context);

// Runs attention_backward() without checking the LSE, for results that the library computed itself
// from these inputs.
Status attention_backward_of_own(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context);

// Runs attention_backward() for some batch entries and key/value heads, with the bits of the whole
// call. Shapes and options describe the part: masks, biases, lengths, positions, slopes and sinks
// begin at its first entry and head. A part must have all batch entries if they share d_bias or if
// d_sinks is given, and all heads if they share d_bias; d_q_gain and d_k_gain need the whole call.
// If results.check_lse is set, the part with the first entry and head checks the LSE.
Status attention_backward_part(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionOptions& options,
                               const AttentionResults& results, const ConstAnyTensor& d_out,
                               const AttentionGradients& gradients, const BackwardPart& part,
                               Context& context);

}  // namespace multihead::engine
