#include "engine/varlen/varlen.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>

#include "cpu/kernels.h"
#include "engine/attention/backward.h"
#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "rules/arena.h"
#include "rules/integers.h"

namespace multihead {
namespace engine {

Status validate_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                       std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                       const AttentionOptions& options, Values values) {
  MULTIHEAD_TRY(validate_rank(Name::kQ, Axes::kVarlenQ, q, 3));
  MULTIHEAD_TRY(validate_rank(Name::kK, Axes::kVarlenK, k, 3));
  MULTIHEAD_TRY(validate_rank(Name::kV, Axes::kVarlenV, v, 3));
  if (v.shape[0] != k.shape[0]) {
    return shape_error(Name::kV, Message::kRowsAsKeys, v.shape, k.shape[0]);
  }
  if (values == Values::kReadable || cu_q.empty()) {
    MULTIHEAD_TRY(validate_cumulative(Name::kCuQ, cu_q, q.shape[0]));
    MULTIHEAD_TRY(validate_cumulative(Name::kCuK, cu_k, k.shape[0]));
  }
  if (cu_q.size() != cu_k.size()) {
    return option_error(Name::kCuK, Message::kSequencesAsQueries,
                        static_cast<int64_t>(cu_q.size()) - 1,
                        static_cast<int64_t>(cu_k.size()) - 1);
  }
  const struct {
    Name name;
    bool given;
  } per_batch[] = {{Name::kMask, options.mask.given()},
                   {Name::kBias, options.bias.given()},
                   {Name::kKvLengths, !options.kv_lengths.empty()},
                   {Name::kRopeQPositions, !options.rope.q_positions.empty()},
                   {Name::kRopeKPositions, !options.rope.k_positions.empty()}};
  for (const auto& [name, given] : per_batch) {
    if (given) return option_error(name, Message::kNotVarlen);
  }
  return {};
}

Status validate_varlen_outputs(const ConstAnyTensor& q, const ConstAnyTensor& v,
                               const AttentionOutputs& outputs) {
  const struct {
    Name name;
    bool given;
  } per_batch[] = {{Name::kCaptures, !outputs.captures.empty()},
                   {Name::kWeights, outputs.weights.given()},
                   {Name::kDropoutMask, outputs.dropout_mask.given()}};
  for (const auto& [name, given] : per_batch) {
    if (given) return option_error(name, Message::kNotVarlen);
  }
  const Dims out_shape{q.shape[0], q.shape[1], v.shape[2]};
  MULTIHEAD_TRY(validate_exact(Name::kOut, Axes::kVarlenOut, outputs.out, out_shape));
  if (!outputs.lse.given()) return {};
  return validate_exact(Name::kLse, Axes::kVarlenLse, outputs.lse, {q.shape[1], q.shape[0]});
}

Status validate_varlen_tensors(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionResults& results,
                               const ConstAnyTensor& d_out, const AttentionGradients& gradients) {
  const Dims out_shape{q.shape[0], q.shape[1], v.shape[2]};
  MULTIHEAD_TRY(validate_exact(Name::kOut, Axes::kVarlenOut, results.out, out_shape));
  MULTIHEAD_TRY(
      validate_exact(Name::kLse, Axes::kVarlenLse, results.lse, {q.shape[1], q.shape[0]}));
  MULTIHEAD_TRY(validate_exact(Name::kDOut, Axes::kVarlenOut, d_out, out_shape));
  const struct {
    Name name;
    Axes axes;
    const Tensor& tensor;
    const Dims& shape;
  } tensors[] = {{Name::kDQ, Axes::kVarlenQ, gradients.d_q, q.shape},
                 {Name::kDK, Axes::kVarlenK, gradients.d_k, k.shape},
                 {Name::kDV, Axes::kVarlenV, gradients.d_v, v.shape}};
  for (const auto& [name, axes, tensor, shape] : tensors) {
    if (!tensor.given()) continue;
    MULTIHEAD_TRY(validate_exact(name, axes, tensor, shape));
  }
  return {};
}

Tensor rows_of(const Tensor& packed, int64_t first, int64_t last) {
  if (!packed.given()) return {};
  const AnyTensor rows = sequence_of(AnyTensor(packed), first, last);
  return {static_cast<float*>(rows.data), rows.shape, rows.strides};
}

Status validate_varlen_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                std::span<const int32_t> cu_k, const AttentionOptions& options,
                                const AttentionResults& results, const ConstAnyTensor& d_out,
                                const AttentionGradients& gradients, AttentionShape& shape,
                                Values values) {
  MULTIHEAD_TRY(validate_varlen(q, k, v, cu_q, cu_k, options, values));
  MULTIHEAD_TRY(validate_varlen_tensors(q, k, v, results, d_out, gradients));
  // Runs all checks of attention_backward() on an empty sequence.
  const auto empty = [](const auto& packed) { return sequence_of(packed, 0, 0); };
  AttentionGradients to = gradients;
  to.d_q = rows_of(gradients.d_q, 0, 0);
  to.d_k = rows_of(gradients.d_k, 0, 0);
  to.d_v = rows_of(gradients.d_v, 0, 0);
  return validate_call(BackwardCall{empty(q),
                                    empty(k),
                                    empty(v),
                                    options,
                                    {.out = empty(results.out), .lse = lse_of(results.lse, 0, 0)},
                                    empty(d_out),
                                    to},
                       shape, values);
}

namespace {

using rules::AttentionParams;
using rules::BackwardParams;

// First row of each sequence, then the end of the last. A plan of the whole call has the rows of
// all sequences in one batch entry.
struct Packed {
  std::span<const int32_t> cu_q, cu_k;

  size_t count() const { return cu_q.size() - 1; }
  int64_t queries(size_t s) const { return cu_q[s + 1] - cu_q[s]; }
  int64_t keys(size_t s) const { return cu_k[s + 1] - cu_k[s]; }
};

template <class Rows>
void advance(Rows& rows, int64_t count) {
  const int64_t elements = count * rows.stride[2];
  if constexpr (requires { rows.type; }) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(rows.data)>>,
                                    const char, char>;
    rows.data = static_cast<Byte*>(rows.data) + elements * bytes_of(rows.type);
  } else {
    rows.data += elements;
  }
}

// Narrows the parameters of the whole call to sequence s.
void narrow(AttentionParams& p, const Packed& packed, size_t s) {
  p.queries = p.end_query = p.visibility.queries = packed.queries(s);
  p.keys = p.visibility.keys = p.visibility.shard_keys = packed.keys(s);
  // Otherwise all sequences would drop the same weights.
  p.dropout.seed = seed_of_sequence(p.dropout.seed, s);
  advance(p.q, packed.cu_q[s]);
  advance(p.k, packed.cu_k[s]);
  advance(p.v, packed.cu_k[s]);
  advance(p.out, packed.cu_q[s]);
  advance(p.lse, packed.cu_q[s]);
}
void narrow(BackwardParams& p, const Packed& packed, size_t s) {
  narrow(p.forward, packed, s);
  advance(p.out, packed.cu_q[s]);
  advance(p.d_out, packed.cu_q[s]);
  advance(p.lse, packed.cu_q[s]);
  advance(p.d_q, packed.cu_q[s]);
  advance(p.d_k, packed.cu_k[s]);
  advance(p.d_v, packed.cu_k[s]);
}

// Plans of all sequences in the context's memory, with their jobs in one list, so that many short
// sequences use all threads. The sequences with most work (queries times keys) are first: if the
// largest started late, the other threads would be idle at the end. A Plan is a ForwardPlan or a
// BackwardPlan.
template <class Plan>
class SequencePlans {
 public:
  // Plans every sequence of the call with these parameters. plan_jobs(plan) completes a plan that
  // has its parameters. On all threads: planning a sequence takes about as long as the attention of
  // ten tokens. Errors: kMemory.
  template <class Params, class PlanJobs>
  Status make(const Params& whole, const Packed& packed, Context& context,
              const PlanJobs& plan_jobs) {
    static_assert(std::is_trivially_copyable_v<Plan>);
    const size_t count = packed.count();
    const uint64_t bytes = count * (sizeof(Plan) + sizeof(int64_t) + sizeof(int32_t));
    Buffer& memory = scratch_of(context).plans();
    if (!memory.reserve(bytes)) return Status::out_of_memory(bytes);
    plans_ = {static_cast<Plan*>(memory.data()), count};
    first_job_ = {reinterpret_cast<int64_t*>(plans_.data() + count), count};
    order_ = {reinterpret_cast<int32_t*>(first_job_.data() + count), count};
    order_by_work(packed);
    constexpr double kOperationsOfPlan = 5e4;
    over_ranges(&context, "plan", kOperationsOfPlan * static_cast<double>(count), this->count(),
                [&](int64_t place, int64_t end) {
                  for (; place < end; ++place) {
                    const auto at = static_cast<size_t>(place);
                    // std::construct_at() would copy the plan.
                    Plan& plan = *::new (static_cast<void*>(&plans_[at])) Plan{};
                    plan.params = whole;
                    narrow(plan.params, packed, sequence(at));
                    plan_jobs(plan);
                    finish_plan(plan, 1);
                  }
                });
    double operations = 0;
    for (size_t place = 0; place < count; ++place) {
      const Plan& plan = plans_[place];
      first_job_[place] = jobs_;
      jobs_ += plan.jobs();
      scratch_bytes_ = std::max(scratch_bytes_, plan.scratch_bytes);
      operations += plan.operations;
    }
    threads_ = threads_for(operations, context.threads());
    return {};
  }

  int64_t count() const { return static_cast<int64_t>(plans_.size()); }
  std::span<Plan> plans() const { return plans_; }
  // Returns the sequence of the plan at `place`.
  size_t sequence(size_t place) const { return static_cast<size_t>(order_[place]); }
  uint64_t scratch_bytes() const { return scratch_bytes_; }  // per thread
  int threads() const { return threads_; }

  // Calls run(plan, index, thread) for every job of every plan, in order. Errors: kAborted.
  template <class Run>
  Status for_jobs(const Context& context, const char* step, const Run& run) const {
    return parallel_for_or_abort(context, step, threads_, jobs_, [&](int64_t index, int thread) {
      const auto after = std::upper_bound(first_job_.begin(), first_job_.end(), index);
      const auto place = static_cast<size_t>(after - first_job_.begin() - 1);
      run(plans_[place], index - first_job_[place], thread);
    });
  }

 private:
  void order_by_work(const Packed& packed) {
    std::iota(order_.begin(), order_.end(), 0);
    const auto work_of = [&](int32_t sequence) {
      const auto s = static_cast<size_t>(sequence);
      return packed.queries(s) * packed.keys(s);
    };
    const auto takes_longer = [&](int32_t a, int32_t b) {
      const int64_t work_a = work_of(a), work_b = work_of(b);
      return work_a != work_b ? work_a > work_b : a < b;
    };
    // std::sort() would add 2 kB to the WebAssembly module.
    std::make_heap(order_.begin(), order_.end(), takes_longer);
    std::sort_heap(order_.begin(), order_.end(), takes_longer);
  }

  std::span<Plan> plans_;
  std::span<int64_t> first_job_;  // of each plan
  std::span<int32_t> order_;      // the sequence of each plan
  int64_t jobs_ = 0;
  uint64_t scratch_bytes_ = 0;
  int threads_ = 1;
};

// Makes the transformations of the whole call start anew at each sequence.
void set_sequences(std::optional<InputTransforms>& transforms, const Packed& packed) {
  if (!transforms) return;
  transforms->cu_q = packed.cu_q;
  transforms->cu_k = packed.cu_k;
}

// Runs the plan of a checked call.
Status run_sequences(ForwardPlan& whole, const AttentionOptions& options, const Packed& packed,
                     Context& context) {
  set_sequences(whole.transforms, packed);
  if (whole.transforms) {
    MULTIHEAD_TRY(transform_inputs(*whole.transforms, whole.params, context));
  }
  SequencePlans<ForwardPlan> plans;
  MULTIHEAD_TRY(plans.make(whole.params, packed, context,
                           [&](ForwardPlan& plan) { plan_jobs(plan, options, /*varlen=*/true); }));
  last_call_of(context) = plans.count() == 0 ? whole.choice : plans.plans().front().choice;
  Scratch& scratch = scratch_of(context);
  MULTIHEAD_TRY(scratch.reserve(context.threads(), plans.scratch_bytes()));
  return plans.for_jobs(context, "attention",
                        [&](const ForwardPlan& plan, int64_t index, int thread) {
                          run_block(plan, index, plan.jobs(), scratch.thread_memory(thread));
                        });
}

// Returns the error of the first sequence whose LSE has one.
Status check_each_lse(const SequencePlans<BackwardPlan>& plans, const Context& context) {
  std::atomic<int64_t> first = plans.count();
  const auto check = [&](int64_t place) {
    return check_lse(plans.plans()[static_cast<size_t>(place)].params);
  };
  const auto sequence_of = [&](int64_t place) {
    return static_cast<int64_t>(plans.sequence(static_cast<size_t>(place)));
  };
  parallel_for(context, "check lse", plans.threads(), plans.count(), [&](int64_t place, int) {
    if (check(place).ok()) return;
    int64_t known = first;
    while (sequence_of(place) < known && !first.compare_exchange_weak(known, sequence_of(place))) {
    }
  });
  for (int64_t place = 0; place < plans.count(); ++place) {
    if (sequence_of(place) == first) return check(place);
  }
  return {};
}

// Computes each sequence's part of d_sinks, then adds the parts in the order of the sequences.
void sum_sinks(const SequencePlans<BackwardPlan>& plans, float* parts, std::span<float> total,
               const Context& context) {
  const auto part_of = [&](size_t s) { return std::span(parts + s * total.size(), total.size()); };
  parallel_for(context, "sinks", plans.threads(), plans.count(), [&](int64_t place, int) {
    const auto at = static_cast<size_t>(place);
    differentiate_sinks(plans.plans()[at].params, part_of(plans.sequence(at)), nullptr);
  });
  std::fill(total.begin(), total.end(), 0.0F);
  for (size_t s = 0; s < plans.plans().size(); ++s) {
    for (size_t head = 0; head < total.size(); ++head) total[head] += part_of(s)[head];
  }
}

// Runs the plan of a checked backward call. The gradients have the rows of all sequences.
Status run_sequences(BackwardPlan& whole, const AttentionGradients& gradients, Lse lse,
                     const Packed& packed, Context& context) {
  // Memory is reserved and the LSE checked before anything is written.
  set_sequences(whole.transforms, packed);
  if (whole.transforms) {
    MULTIHEAD_TRY(reserve_for_transform(*whole.transforms, gradients, context));
    MULTIHEAD_TRY(transform_inputs(*whole.transforms, whole.params.forward, context));
  }
  SequencePlans<BackwardPlan> plans;
  MULTIHEAD_TRY(plans.make(whole.params, packed, context, [&](BackwardPlan& plan) {
    plan_jobs(plan, /*has_sinks=*/!gradients.d_sinks.empty());
  }));
  Scratch& scratch = scratch_of(context);
  float* sinks = nullptr;  // (sequences, H_q) parts of d_sinks
  const auto lay_out = [&](void* memory) {
    rules::Arena take(memory);
    take(sinks, packed.count() * gradients.d_sinks.size());
    for (BackwardPlan& plan : plans.plans()) lay_out_backward(plan, take);
    return take.bytes();
  };
  const uint64_t bytes = lay_out(nullptr);
  if (!scratch.gradients().reserve(bytes)) return Status::out_of_memory(bytes);
  lay_out(scratch.gradients().data());
  MULTIHEAD_TRY(scratch.reserve(context.threads(), plans.scratch_bytes()));
  if (lse == Lse::kToCheck) {
    MULTIHEAD_TRY(check_each_lse(plans, context));
  }
  const AttentionParams& p = whole.params.forward;
  // Without a query there may be any number of heads.
  const int64_t rows = p.queries == 0 ? 0 : plans.count() * p.heads;
  parallel_for(context, "row sums", plans.threads(), rows, [&](int64_t index, int thread) {
    const BackwardPlan& plan = plans.plans()[static_cast<size_t>(index / p.heads)];
    if (index % p.heads == 0) reset_semaphores(plan);
    cpu::backward_rows(plan.params, 0, index % p.heads, scratch.thread_memory(thread));
  });
  MULTIHEAD_TRY(plans.for_jobs(context, "attention backward",
                               [&](const BackwardPlan& plan, int64_t index, int thread) {
                                 run_backward_job(plan, index, scratch.thread_memory(thread));
                               }));
  if (!gradients.d_sinks.empty()) sum_sinks(plans, sinks, gradients.d_sinks, context);
  return whole.transforms ? transform_gradients(*whole.transforms, gradients, context) : Status();
}

}  // namespace
}  // namespace engine

Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        Context& context) {
  return engine::memory_guard([&]() -> Status {
    using engine::sequence_of;
    MULTIHEAD_TRY(engine::validate_varlen(q, k, v, cu_q, cu_k, options));
    MULTIHEAD_TRY(engine::validate_varlen_outputs(q, v, outputs));
    MULTIHEAD_TRY(engine::validate_apart({q, k, v, options, outputs}));
    // All checks of attention(), on an empty sequence.
    engine::AttentionShape shape;
    const AttentionOutputs nothing{.out = sequence_of(outputs.out, 0, 0)};
    MULTIHEAD_TRY(engine::validate_call(
        {sequence_of(q, 0, 0), sequence_of(k, 0, 0), sequence_of(v, 0, 0), options, nothing},
        shape));
    shape.queries = q.shape[0];
    shape.keys = k.shape[0];
    AttentionOutputs all{.out = sequence_of(outputs.out, 0, shape.queries)};
    if (outputs.lse.given()) all.lse = engine::lse_of(outputs.lse, 0, shape.queries);
    engine::ForwardPlan plan =
        engine::plan_forward({sequence_of(q, 0, shape.queries), sequence_of(k, 0, shape.keys),
                              sequence_of(v, 0, shape.keys), options, all},
                             shape, /*varlen=*/true);
    return engine::run_sequences(plan, options, {cu_q, cu_k}, context);
  });
}

Status attention_varlen_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                 std::span<const int32_t> cu_k, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context) {
  return engine::memory_guard([&]() -> Status {
    using engine::rows_of;
    using engine::sequence_of;
    engine::AttentionShape shape;
    MULTIHEAD_TRY(engine::validate_varlen_backward(q, k, v, cu_q, cu_k, options, results, d_out,
                                                   gradients, shape));
    MULTIHEAD_TRY(engine::validate_apart({q, k, v, options, results, d_out, gradients}));
    shape.queries = q.shape[0];
    shape.keys = k.shape[0];
    const AttentionResults of{.out = sequence_of(results.out, 0, shape.queries),
                              .lse = engine::lse_of(results.lse, 0, shape.queries)};
    AttentionGradients all = gradients;
    all.d_q = rows_of(gradients.d_q, 0, shape.queries);
    all.d_k = rows_of(gradients.d_k, 0, shape.keys);
    all.d_v = rows_of(gradients.d_v, 0, shape.keys);
    engine::BackwardPlan plan = engine::plan_backward(
        {sequence_of(q, 0, shape.queries), sequence_of(k, 0, shape.keys),
         sequence_of(v, 0, shape.keys), options, of, sequence_of(d_out, 0, shape.queries), all},
        shape);
    const engine::Lse lse = results.check_lse ? engine::Lse::kToCheck : engine::Lse::kTrusted;
    return engine::run_sequences(plan, all, lse, {cu_q, cu_k}, context);
  });
}

}  // namespace multihead
