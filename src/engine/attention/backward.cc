#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "cpu/kernels.h"
#include "engine/attention/backward.h"
#include "engine/attention/closed_form.h"
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
using rules::BackwardGeometry;
using rules::BackwardParams;

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

// The call restricted to the first head of the first batch entry.
AttentionOptions options_of_first_head(const AttentionOptions& options,
                                       const AttentionShape& shape) {
  AttentionOptions first = options;
  const auto restrict_axes = [](auto& view) {
    if (view.shape.rank() != 4) return;
    view.shape[0] = view.shape[1] = 1;
  };
  restrict_axes(first.mask);
  restrict_axes(first.bias);
  const auto shorten = [](auto& values, int64_t count) {
    if (!values.empty()) values = values.first(static_cast<size_t>(count));
  };
  shorten(first.alibi_slopes, 1);
  shorten(first.sinks, 1);
  shorten(first.kv_lengths, 1);
  shorten(first.rope.q_positions, shape.queries);
  shorten(first.rope.k_positions, shape.keys);
  first.dropout = {};
  return first;
}

}  // namespace

CheckedRow::CheckedRow(const ConstAnyTensor& q_, const ConstAnyTensor& k_,
                       const AttentionOptions& options_, const AttentionShape& shape)
    : q(q_), k(k_), options(options_of_first_head(options_, shape)), row(shape.queries - 1) {
  exists = shape.batch != 0 && shape.heads != 0 && shape.queries != 0;
  q.shape[0] = q.shape[1] = k.shape[0] = k.shape[1] = 1;
  if (!exists || shape.head_dim != 0) return;
  const AttentionParams params = attention_params(
      {.q = stored_rows(q), .k = stored_rows(k), .v = {}},
      {.batch = 1, .heads = 1, .kv_heads = 1, .queries = shape.queries, .keys = shape.keys},
      options, {});
  if (keys_share_mask_and_bias(params)) closed_form = closed_form_lse(params, 0, 0, row);
}

Status CheckedRow::check(std::span<const float> scores, float lse) const {
  double largest = options.sinks.empty() ? -HUGE_VAL : static_cast<double>(options.sinks[0]);
  for (const float score : scores) {
    if (std::isnan(score)) return {};
    largest = std::max(largest, static_cast<double>(score));
  }
  double sum =
      options.sinks.empty() ? 0.0 : std::exp(static_cast<double>(options.sinks[0]) - largest);
  for (const float score : scores) sum += std::exp(static_cast<double>(score) - largest);
  const auto given = static_cast<double>(lse);
  const double expected = closed_form.has_value() ? static_cast<double>(*closed_form)
                          : largest == -HUGE_VAL  ? largest
                                                  : largest + std::log(sum);
  if (std::isnan(expected) || expected == HUGE_VAL || expected == given) return {};
  const double allowed = 0.05 + 0.01 * std::abs(expected);
  if (expected != -HUGE_VAL && std::abs(expected - given) <= allowed) return {};
  return real_error(Name::kLse, Message::kLseOfCall, given);
}

void lay_out_backward(BackwardPlan& plan, rules::Arena& take) {
  BackwardParams& params = plan.params;
  const AttentionParams& p = params.forward;
  const auto rows = static_cast<uint64_t>(p.batch * p.heads * p.queries);
  take(params.delta, rows);
  take(params.reference, rows);
  take(params.query_turns, plan.query_turns());
  take(params.key_turns, plan.key_turns());
}

Status reserve_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context) {
  if (plan.transforms) {
    if (Status status = reserve_for_transform(*plan.transforms, context); !status.ok()) {
      return status;
    }
    for (const auto& [x, d_gain] : {std::pair{plan.transforms->q, gradients.d_q_gain},
                                    {plan.transforms->k, gradients.d_k_gain}}) {
      if (Status status = reserve_for_transform_back(x, d_gain, context); !status.ok()) {
        return status;
      }
    }
  }
  return reserve_gradients(plan, context);
}

namespace {

void differentiate_sinks(const cpu::SinkParams& params, std::span<float> d_sinks, int threads) {
  const auto heads = static_cast<int64_t>(d_sinks.size());
  const double rows = static_cast<double>(heads) * static_cast<double>(params.batch) *
                      static_cast<double>(params.queries);
  // The second thread joins where one takes 50 us, which is longer than it takes to wake up.
  over_ranges(3.0 * rows, heads, threads, [&](int64_t head, int64_t end) {
    for (; head < end; ++head) {
      d_sinks[static_cast<size_t>(head)] = cpu::sink_gradient(params, head);
    }
  });
}

}  // namespace

void differentiate_sinks(const BackwardParams& params, std::span<float> d_sinks, int threads) {
  const AttentionParams& p = params.forward;
  const rules::Rows<const float> delta{params.delta, {p.heads * p.queries, p.queries, 1}};
  differentiate_sinks(
      {.sinks = p.sinks, .lse = params.lse, .delta = delta, .batch = p.batch, .queries = p.queries},
      d_sinks, threads);
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
  const auto lay_out = [&](void* memory) {
    rules::Arena take(memory);
    take(rows.delta, static_cast<uint64_t>(batch * rows.heads * rows.queries));
    return take.bytes();
  };
  const uint64_t bytes = lay_out(nullptr);
  if (!scratch.gradients().reserve(bytes)) return Status::out_of_memory(bytes);
  lay_out(scratch.gradients().data());
  const auto row_bytes = static_cast<uint64_t>(rows.width) * sizeof(float);
  const Status status =
      scratch.reserve(context.threads(), 2 * (row_bytes + cpu::kScratchAlignment));
  if (!status.ok()) return status;
  const auto columns = static_cast<double>(d_out.shape.elements());
  const int threads = threads_for(columns, context.threads());
  parallel_for(threads, batch * rows.heads, [&](int64_t index, int thread) {
    cpu::delta_rows(rows, index / rows.heads, index % rows.heads, scratch.of_thread(thread));
  });
  const Dims& lse = results.lse.strides;
  differentiate_sinks({.sinks = sinks.data(),
                       .lse = {results.lse.data, {lse[0], lse[1], lse[2]}},
                       .delta = {rows.delta, {rows.heads * rows.queries, rows.queries, 1}},
                       .batch = batch,
                       .queries = rows.queries},
                      d_sinks, context.threads());
  return {};
}

void begin_turns(const BackwardPlan& plan) {
  const rules::BackwardParams& params = plan.params;
  for (uint64_t i = 0; i < plan.query_turns(); ++i) std::construct_at(params.query_turns + i, 0);
  for (uint64_t i = 0; i < plan.key_turns(); ++i) std::construct_at(params.key_turns + i, 0);
}

void begin_backward(const BackwardPlan& plan, const AttentionGradients& gradients,
                    Context& context) {
  const BackwardParams& params = plan.params;
  const AttentionParams& p = params.forward;
  const Scratch& scratch = scratch_of(context);
  clear(gradients.d_bias);
  begin_turns(plan);
  if (p.queries == 0 || (plan.jobs() == 0 && gradients.d_sinks.empty())) return;
  const int threads = threads_for(plan.operations, context.threads());
  parallel_for(threads, p.batch * p.heads, [&](int64_t index, int thread) {
    cpu::backward_rows(params, index / p.heads, index % p.heads, scratch.of_thread(thread));
  });
}

void run_backward_job(const BackwardPlan& plan, int64_t index, void* scratch) {
  const BackwardGeometry& g = plan.geometry;
  // With causal order, the last rows and the first chunks take longest, so they start first. The
  // next job has the next chunk, whose turn to add d_q comes block by block. If it had the next
  // rows, it would end when the job before ends, and wait to add d_k and d_v: one head of 8k tokens
  // took 1.06 times as long on two threads.
  const int64_t parts = g.batch_parts * g.head_parts;
  const int64_t rows = index / parts / g.chunks, chunk = index / parts % g.chunks;
  const int64_t first_batch = index % parts / g.head_parts * g.batches;
  const int64_t first_head = index % g.head_parts * g.heads;
  // In another order jobs could wait for later ones, for ever; see BackwardGeometry.
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
  differentiate_sinks(plan.params, gradients.d_sinks, context.threads());
}

Status run_backward(BackwardPlan& plan, const AttentionGradients& gradients, Context& context) {
  // All memory is reserved before anything is written.
  if (Status status = reserve_backward(plan, gradients, context); !status.ok()) return status;
  if (plan.transforms) {
    if (Status status = transform_inputs(*plan.transforms, plan.params.forward, context);
        !status.ok()) {
      return status;
    }
  }
  begin_backward(plan, gradients, context);
  const Scratch& scratch = scratch_of(context);
  const int threads = threads_for(plan.operations, context.threads());
  parallel_for(threads, plan.geometry.jobs, [&](int64_t index, int thread) {
    run_backward_job(plan, index, scratch.of_thread(thread));
  });
  end_backward(plan, gradients, context);
  if (!plan.transforms) return {};
  const InputTransforms& transforms = *plan.transforms;
  if (gradients.d_q.given()) {
    if (Status status = transform_back(transforms.q, transforms.of_queries(), gradients.d_q,
                                       gradients.d_q_gain, context);
        !status.ok()) {
      return status;
    }
  }
  if (!gradients.d_k.given()) return {};
  return transform_back(transforms.k, transforms.of_keys(), gradients.d_k, gradients.d_k_gain,
                        context);
}

namespace {

enum class Results : uint8_t { kOwn, kToCheck };

Status check_lse(const ConstAnyTensor& q, const ConstAnyTensor& k, const AttentionOptions& options,
                 const ConstTensor& lse, const AttentionShape& shape, Context& context) {
  const CheckedRow checked(q, k, options, shape);
  if (!checked.exists) return {};
  const auto keys = static_cast<size_t>(checked.scores());
  Buffer& memory = scratch_of(context).gradients();
  if (!memory.reserve(keys * sizeof(float))) return Status::out_of_memory(keys * sizeof(float));
  auto* const scores = static_cast<float*>(memory.data());
  if (keys > 0) {
    Status status =
        attention_scores(checked.q, checked.k, checked.options, checked.capture(scores), context);
    if (!status.ok()) return status;
  }
  return checked.check({scores, keys}, lse.data[checked.row * lse.strides[2]]);
}

Status plan_and_run(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                    const AttentionOptions& options, const AttentionResults& results, Results kind,
                    const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                    const BackwardPart& part, Context& context) {
  return memory_guard([&]() -> Status {
    AttentionShape shape;
    Status status = validate_inputs(q, k, v, shape);
    if (status.ok()) status = validate_options(options, shape);
    if (status.ok()) status = validate_backward(options, results, d_out, gradients, shape);
    if (status.ok()) status = validate_apart(q, k, v, options, results, d_out, gradients);
    if (status.ok() && kind == Results::kToCheck && results.check_lse) {
      status = check_lse(q, k, options, results.lse, shape, context);
    }
    if (!status.ok()) return status;
    BackwardPlan plan = plan_backward(q, k, v, shape, options, results, d_out, gradients, part);
    return run_backward(plan, gradients, context);
  });
}

}  // namespace

Status attention_backward_of_own(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context) {
  return plan_and_run(q, k, v, options, results, Results::kOwn, d_out, gradients, {}, context);
}

Status attention_backward_part(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionOptions& options,
                               const AttentionResults& results, const ConstAnyTensor& d_out,
                               const AttentionGradients& gradients, const BackwardPart& part,
                               Context& context) {
  const bool is_first = part.first_batch == 0 && part.first_head == 0;
  return plan_and_run(q, k, v, options, results, is_first ? Results::kToCheck : Results::kOwn,
                      d_out, gradients, part, context);
}

}  // namespace engine

Status attention_backward(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                          const AttentionOptions& options, const AttentionResults& results,
                          const ConstAnyTensor& d_out, const AttentionGradients& gradients,
                          Context& context) {
  return engine::attention_backward_part(q, k, v, options, results, d_out, gradients, {}, context);
}

}  // namespace multihead
