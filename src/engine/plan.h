// From a checked call to kernel parameters and jobs: every default is settled here.
#pragma once

#include "cpu/kernels.h"
#include "engine/validate.h"

namespace multihead::engine {

struct ForwardJob {
  int64_t batch, kv_head, first_row;
};

struct ForwardPlan {
  cpu::ForwardParams params;
  cpu::ForwardLayout layout;
  int64_t blocks;  // of rows, for each batch entry and key/value head
  int64_t jobs;

  ForwardJob job(int64_t index) const;
};

ForwardPlan plan_forward(const AttentionShape& shape, const ConstTensor& q, const ConstTensor& k,
                         const ConstTensor& v, const AttentionOptions& options,
                         const AttentionOutputs& outputs);

}  // namespace multihead::engine
