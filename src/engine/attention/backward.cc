#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cpu/kernels.h"
#include "engine/attention/backward.h"
#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
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
    MULTIHEAD_TRY(reserve_for_transform(*plan.transforms, gradients, context));
  }
  return reserve_gradients(plan, context);
}

namespace {

void write_sink_gradients(const cpu::SinkParams& params, std::span<float> d_sinks,
                          const Context* context) {
  const auto heads = static_cast<int64_t>(d_sinks.size());
  const double rows = static_cast<double>(heads) * static_cast<double>(params.batch) *
                      static_cast<double>(params.queries);
  // The second thread joins where one takes 50 us on Zen 4. It was not measured from which size on
  // two threads are faster.
  over_ranges(context, "sinks", 3.0 * rows, heads, [&](int64_t head, int64_t end) {
    for (; head < end; ++head) {
      d_sinks[static_cast<size_t>(head)] = cpu::sink_gradient(params, head);
    }
  });
}

}  // namespace

void differentiate_sinks(const BackwardParams& params, std::span<float> d_sinks,
                         const Context* context) {
  const AttentionParams& p = params.forward;
  const rules::Rows<const float> delta{params.delta, {p.heads * p.queries, p.queries, 1}};
  write_sink_gradients(
      {.sinks = p.sinks, .lse = params.lse, .delta = delta, .batch = p.batch, .queries = p.queries},
      d_sinks, context);
}

Status differentiate_sinks(std::span<const float> sinks, const AttentionResults& results,
                           const ConstAnyTensor& d_out, std::span<float> d_sinks,
                           Context& context) {
  cpu::DeltaParams rows{.out = stored_rows(results.out),
                        .d_out = stored_rows(d_out),
                        .heads = d_out.shape[1],
                        .queries = d_out.shape[2],
                        .width = d_out.shape[3],
                        .delta = nullptr};
  const int64_t batch = d_out.shape[0];
  Scratch& scratch = scratch_of(context);
  const uint64_t bytes = static_cast<uint64_t>(batch * rows.heads * rows.queries) * sizeof(float);
  if (!scratch.gradients().reserve(bytes)) return Status::out_of_memory(bytes);
  rows.delta = static_cast<float*>(scratch.gradients().data());
  const auto row_bytes = static_cast<uint64_t>(rows.width) * sizeof(float);
  MULTIHEAD_TRY(scratch.reserve(context.threads(), 2 * (row_bytes + cpu::kScratchAlignment)));
  const auto columns = static_cast<double>(d_out.shape.elements());
  const int threads = threads_for(columns, context.threads());
  parallel_for(context, "row sums", threads, batch * rows.heads, [&](int64_t index, int thread) {
    cpu::delta_rows(rows, index / rows.heads, index % rows.heads, scratch.thread_memory(thread));
  });
  const Dims& lse = results.lse.strides;
  write_sink_gradients({.sinks = sinks.data(),
                        .lse = {results.lse.data, {lse[0], lse[1], lse[2]}},
                        .delta = {rows.delta, {rows.heads * rows.queries, rows.queries, 1}},
                        .batch = batch,
                        .queries = rows.queries},
                       d_sinks, &context);
  return {};
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
  parallel_for(
      context, "row sums", plan.threads, p.batch * p.heads, [&](int64_t index, int thread) {
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

void end_backward(const BackwardPlan& plan, const AttentionGradients& gradients, Context& context) {
  if (gradients.d_sinks.empty()) return;
  differentiate_sinks(plan.params, gradients.d_sinks, &context);
}

Status run_backward(BackwardPlan& plan, const AttentionGradients& gradients, Lse lse,
                    Context& context) {
  finish_plan(plan, context.threads());
  // All memory is reserved, and the LSE checked, before anything is written.
  MULTIHEAD_TRY(reserve_backward(plan, gradients, context));
  if (plan.transforms) {
    MULTIHEAD_TRY(transform_inputs(*plan.transforms, plan.params.forward, context));
  }
  if (lse == Lse::kToCheck) MULTIHEAD_TRY(check_lse(plan.params));
  begin_backward(plan, gradients, context);
  const Scratch& scratch = scratch_of(context);
  MULTIHEAD_TRY(parallel_for_or_abort(
      context, "attention backward", plan.threads, plan.jobs(), [&](int64_t index, int thread) {
        run_backward_job(plan, index, scratch.thread_memory(thread));
      }));
  end_backward(plan, gradients, context);
  return plan.transforms ? transform_gradients(*plan.transforms, gradients, context) : Status();
}

Status attention_backward_part(const BackwardCall& call, const BackwardPart& part,
                               Context& context) {
  return memory_guard([&]() -> Status {
    AttentionShape shape;
    MULTIHEAD_TRY(validate_call(call, shape));
    MULTIHEAD_TRY(validate_apart(call));
    BackwardPlan plan = plan_backward(call, shape, part);
    const bool is_first = part.first_batch == 0 && part.first_head == 0;
    const Lse lse = is_first && call.results.check_lse ? Lse::kToCheck : Lse::kTrusted;
    return run_backward(plan, call.gradients, lse, context);
  });
}

Status divide_backward(const BackwardCall& call, BackwardParts& parts) {
  return memory_guard([&]() -> Status {
    AttentionShape shape;
    MULTIHEAD_TRY(validate_call(call, shape));
    const BackwardPlan plan = plan_backward(call, shape);
    const rules::BackwardTiling& tiling = plan.tiling;
    const AttentionGradients& gradients = call.gradients;
    const bool sums_all = !gradients.d_q_gain.empty() || !gradients.d_k_gain.empty();
    const bool sums_batches = sums_all || !gradients.d_sinks.empty();
    parts.batches = sums_batches ? std::min<int64_t>(1, tiling.batch_parts) : tiling.batch_parts;
    parts.kv_heads = sums_all ? std::min<int64_t>(1, tiling.head_parts) : tiling.head_parts;
    parts.jobs = tiling.batch_parts * tiling.head_parts;
    parts.operations = plan.operations;
    return {};
  });
}

}  // namespace engine

Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                          const AttentionOptions& options, const AttentionResults& results,
                          const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                          Context& context) {
  return engine::attention_backward_part({q, k, v, options, results, d_out, gradients}, {},
                                         context);
}

}  // namespace multihead
