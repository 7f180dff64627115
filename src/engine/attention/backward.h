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

// All memory that run_backward() needs. Errors: kMemory.
MULTIHEAD_SHARED Status reserve_backward(BackwardPlan& plan, const AttentionGradients& gradients,
                                         Context& context);

// `gradients` are those that were planned. Errors: kMemory.
Status run_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context);

// The row by which an LSE of other inputs or options is refused: the last query of the first head
// of the first batch entry. Much is allowed: products of bf16, and the rounding of large scores.
struct CheckedRow {
  CheckedRow(const ConstAnyTensor& q, const ConstAnyTensor& k, const AttentionOptions& options,
             const AttentionShape& shape);

  // How many of the row's scores check() reads: N_k, or none if they have a closed form.
  int64_t scores() const { return closed_form.has_value() ? 0 : k.shape[2]; }
  // Of the row's scores, N_k floats.
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

// Takes the memory that the jobs of a plan share, see BackwardParams.
void lay_out_backward(BackwardPlan& plan, rules::Arena& take);

// The steps of run_backward() of a plan without transforms, whose memory is reserved. The jobs of
// run_backward_job() are plan.geometry.jobs. They begin in that order, on any threads.
MULTIHEAD_SHARED void begin_backward(const BackwardPlan& plan, const AttentionGradients& gradients,
                                     Context& context);
void begin_turns(const BackwardPlan& plan);  // a part of begin_backward()
MULTIHEAD_SHARED void run_backward_job(const BackwardPlan& plan, int64_t index, void* scratch);
MULTIHEAD_SHARED void end_backward(const BackwardPlan& plan, const AttentionGradients& gradients);
// d_sink = -(sum over rows of the sink's weight * delta).
void differentiate_sinks(const rules::BackwardParams& params, std::span<float> d_sinks);

// attention_backward() of results that the library has made itself from these inputs: their LSE is
// not checked.
Status attention_backward_of_own(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context);

// Some batch entries and key/value heads of a call of attention_backward(), with the bits of the
// whole call. Shapes and options are those of the part: masks, biases, lengths, positions, slopes
// and sinks begin at its first entry and head. A part has all batch entries if d_bias is shared by
// them or d_sinks is given, and all heads if they share d_bias; d_q_gain and d_k_gain need the
// whole call. The part of the first entry and head checks the LSE, if results.check_lse says so.
Status attention_backward_part(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionOptions& options,
                               const AttentionResults& results, const ConstAnyTensor& d_out,
                               const AttentionGradients& gradients, const BackwardPart& part,
                               Context& context);

}  // namespace multihead::engine
