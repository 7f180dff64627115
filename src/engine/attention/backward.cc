#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cpu/kernels.h"
#include "engine/attention/backward.h"
#include "engine/attention/check_lse.h"
#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/error/guard.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "hwy/base.h"
#include "multihead/attention_backward.h"
#include "rules/arena.h"

namespace multihead {
namespace engine {
namespace {

using rules::AttentionParams;
using rules::BackwardParams;
using rules::BackwardTiling;

Status reserve_gradients(BackwardPlan& plan, Context& context) {
  const auto lay_out = [&](void* memory) {
    rules::Arena take(memory);
    lay_out_backward(plan, take);
    return take.bytes();
  };
  const uint64_t bytes = lay_out(nullptr);
  Scratch& scratch = scratch_of(context);
  if (!scratch.gradients().reserve(bytes)) return Status::out_of_memory(bytes);
  lay_out(scratch.gradients().data());
  return scratch.reserve(context.threads(), plan.scratch_bytes);
}

void clear(const Tensor& tensor) {
  if (!tensor.given() || tensor.shape.elements() == 0) return;
  const int rank = tensor.shape.rank();
  const int64_t width = tensor.shape[rank - 1];
  for (int64_t row = 0; row < tensor.shape.elements() / width; ++row) {
    int64_t rest = row, offset = 0;
    for (int axis = rank - 2; axis >= 0; --axis) {
      offset += rest % tensor.shape[axis] * tensor.strides[axis];
      rest /= tensor.shape[axis];
    }
    std::fill_n(tensor.data + offset, width, 0.0F);
  }
}

}  // namespace

void lay_out_backward(BackwardPlan& plan, rules::Arena& take) {
  BackwardParams& params = plan.params;
  const AttentionParams& p = params.forward;
  const auto rows = static_cast<uint64_t>(p.batch * p.heads * p.queries);
  take(params.delta, rows);
  take(params.reference, rows);
  take(params.query_semaphores, plan.query_semaphores());
  take(params.key_semaphores, plan.key_semaphores());
}

Status reserve_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context) {
  if (plan.transforms) {
    if (Status status = reserve_for_transform(*plan.transforms, gradients, context); !status.ok()) {
      return status;
    }
  }
  return reserve_gradients(plan, context);
}

void differentiate_sinks(const BackwardParams& params, std::span<float> d_sinks) {
  const AttentionParams& p = params.forward;
  for (int64_t head = 0; head < p.heads; ++head) {
    const auto sink = static_cast<double>(p.sinks[head]);
    double sum = 0;
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      for (int64_t query = 0; query < p.queries; ++query) {
        const auto lse = static_cast<double>(*params.lse.row(batch, head, query));
        const float delta = params.delta[params.row_index(batch, head, query)];
        sum += std::exp(sink - lse) * static_cast<double>(delta);
      }
    }
    d_sinks[static_cast<size_t>(head)] = static_cast<float>(-sum);
  }
}

void reset_semaphores(const BackwardPlan& plan) {
  const rules::BackwardParams& params = plan.params;
  for (uint64_t i = 0; i < plan.query_semaphores(); ++i)
    std::construct_at(params.query_semaphores + i, 0);
  for (uint64_t i = 0; i < plan.key_semaphores(); ++i)
    std::construct_at(params.key_semaphores + i, 0);
}

void begin_backward(const BackwardPlan& plan, const AttentionGradients& gradients,
                    Context& context) {
  const BackwardParams& params = plan.params;
  const AttentionParams& p = params.forward;
  const Scratch& scratch = scratch_of(context);
  clear(gradients.d_bias);
  reset_semaphores(plan);
  if (p.queries == 0 || (plan.jobs() == 0 && gradients.d_sinks.empty())) return;
  parallel_for(plan.threads, p.batch * p.heads, [&](int64_t index, int thread) {
    cpu::backward_rows(params, index / p.heads, index % p.heads, scratch.thread_memory(thread));
  });
}

void run_backward_job(const BackwardPlan& plan, int64_t index, void* scratch) {
  const BackwardTiling& g = plan.tiling;
  // With causal order, the last rows and the first chunks take longest, so they start first. The
  // next job has the next chunk, which adds d_q block by block. If it had the next
  // rows, it would end when the job before ends, and wait to add d_k and d_v: one head of 8k tokens
  // took 1.06 times as long on two threads.
  const int64_t parts = g.batch_parts * g.head_parts;
  const int64_t rows = index / parts / g.chunks, chunk = index / parts % g.chunks;
  const int64_t first_batch = index % parts / g.head_parts * g.batches;
  const int64_t first_head = index % g.head_parts * g.heads;
  // In another order jobs could wait for later ones, for ever; see BackwardTiling.
  HWY_DASSERT(index == g.number_of(rows, chunk, index % parts));
  for (int64_t batch = first_batch; batch < first_batch + g.batches; ++batch) {
    for (int64_t head = first_head; head < first_head + g.heads; ++head) {
      cpu::backward_chunk(plan.params, g,
                          {.batch = batch, .kv_head = head, .chunk = chunk, .rows = rows}, scratch);
    }
  }
}

void end_backward(const BackwardPlan& plan, const AttentionGradients& gradients) {
  if (!gradients.d_sinks.empty()) differentiate_sinks(plan.params, gradients.d_sinks);
}

Status run_backward(BackwardPlan& plan, const AttentionGradients& gradients, Lse lse,
                    Context& context) {
  finish_plan(plan, context.threads());
  // All memory is reserved, and the LSE checked, before anything is written.
  if (Status status = reserve_backward(plan, gradients, context); !status.ok()) return status;
  if (plan.transforms) {
    if (Status status = transform_inputs(*plan.transforms, plan.params.forward, context);
        !status.ok()) {
      return status;
    }
  }
  if (lse == Lse::kToCheck) {
    if (Status status = check_lse(plan.params); !status.ok()) return status;
  }
  begin_backward(plan, gradients, context);
  const Scratch& scratch = scratch_of(context);
  parallel_for(plan.threads, plan.jobs(), [&](int64_t index, int thread) {
    run_backward_job(plan, index, scratch.thread_memory(thread));
  });
  end_backward(plan, gradients);
  return plan.transforms ? transform_gradients(*plan.transforms, gradients, context) : Status();
}

namespace {

Status plan_and_run(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                    const AttentionOptions& options, const AttentionResults& results, Lse lse,
                    const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                    const BackwardPart& part, Context& context) {
  return memory_guard([&]() -> Status {
    AttentionShape shape;
    Status status = validate_inputs(q, k, v, shape);
    if (status.ok()) status = validate_options(options, shape);
    if (status.ok()) status = validate_backward(options, results, d_out, gradients, shape);
    if (status.ok()) status = validate_apart(q, k, v, options, results, d_out, gradients);
    if (!status.ok()) return status;
    BackwardPlan plan = plan_backward(q, k, v, shape, options, results, d_out, gradients, part);
    return run_backward(plan, gradients, lse, context);
  });
}

}  // namespace

Status attention_backward_of_own(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context) {
  return plan_and_run(q, k, v, options, results, Lse::kTrusted, d_out, gradients, {}, context);
}

Status attention_backward_part(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionOptions& options,
                               const AttentionResults& results, const ConstAnyTensor& d_out,
                               const AttentionGradients& gradients, const BackwardPart& part,
                               Context& context) {
  const bool is_first = part.first_batch == 0 && part.first_head == 0;
  const Lse lse = is_first && results.check_lse ? Lse::kToCheck : Lse::kTrusted;
  return plan_and_run(q, k, v, options, results, lse, d_out, gradients, part, context);
}

}  // namespace engine

Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                          const AttentionOptions& options, const AttentionResults& results,
                          const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                          Context& context) {
  return engine::attention_backward_part(q, k, v, options, results, d_out, gradients, {}, context);
}

}  // namespace multihead
