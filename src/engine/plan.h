// From a checked call to kernel parameters and jobs: every default is settled here.
#pragma once

#include <cstdint>

#include "cpu/kernels.h"
#include "engine/validate.h"

namespace multihead::engine {

struct ForwardPlan {
  cpu::ForwardParams params;
  cpu::ForwardLayout layout;
  int64_t blocks;  // of rows, for each batch entry and key/value head; of heads, if it decodes
  int64_t jobs;
  bool decodes;  // then `decode` and not `layout`, and pieces of keys, not blocks
  cpu::DecodeLayout decode;
  double operations;  // at most

  cpu::ForwardJob job(int64_t index) const;
};

// A tensor of rank 4 as the kernels see it.
cpu::StoredRows stored_rows(const ConstAnyTensor& tensor);

// What is attended to, wherever it lies.
struct ForwardInputs {
  cpu::StoredRows q, k, v;
  const int32_t* firsts = nullptr;   // (B): the first key that is there; null for 0
  const int32_t* lengths = nullptr;  // (B): instead of options.kv_lengths; null for those
};

// `may_decode`: few rows may be planned as decoding, which only run_forward() knows.
ForwardPlan plan_forward(const ForwardInputs& inputs, const AttentionShape& shape,
                         const AttentionOptions& options, const AttentionOutputs& outputs,
                         bool may_decode = true);

// The same for captures alone.
ForwardPlan plan_scores(const ForwardInputs& inputs, const AttentionShape& shape,
                        const AttentionOptions& options, const ScoreCapture& capture);

// Before a plan runs again: the lengths that it points to may be others.
void follow_lengths(ForwardPlan& plan);

// All memory that run_forward() would ask for, whatever the lengths.
Status reserve_scratch(const ForwardPlan& plan, Context& context);

// Runs every job of a plan on the context's threads.
Status run_forward(const ForwardPlan& plan, Context& context);

}  // namespace multihead::engine
