#include "multihead/attention.h"

#include "engine/plan.h"
#include "engine/scratch.h"
#include "engine/threads.h"
#include "engine/validate.h"

namespace multihead {

Status attention(const ConstTensor& q, const ConstTensor& k, const ConstTensor& v,
                 const AttentionOptions& options, const AttentionOutputs& outputs,
                 Context& context) {
  engine::AttentionShape shape;
  if (Status status = engine::validate_attention(q, k, v, options, outputs, shape); !status.ok()) {
    return status;
  }
  const engine::ForwardPlan plan = engine::plan_forward(shape, q, k, v, options, outputs);
  engine::Scratch& scratch = context.scratch();
  if (Status status = scratch.reserve(context.threads(), plan.layout.scratch_bytes); !status.ok()) {
    return status;
  }
  engine::parallel_for(context.threads(), plan.jobs, [&](int64_t index, int thread) {
    const engine::ForwardJob job = plan.job(index);
    cpu::forward_block(plan.params, job.batch, job.kv_head, job.first_row,
                       scratch.of_thread(thread));
  });
  return {};
}

}  // namespace multihead
