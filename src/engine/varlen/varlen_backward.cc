#include "engine/varlen/varlen.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "cpu/kernels.h"
#include "engine/attention/backward.h"
#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/error/guard.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "multihead/attention_backward.h"
#include "rules/arena.h"

namespace multihead::engine {

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

}  // namespace multihead::engine

namespace multihead {
namespace {

using engine::AttentionShape;
using engine::BackwardPlan;
using engine::lse_of;
using engine::rows_of;
using engine::sequence_of;
using engine::VarlenInputs;
using engine::VarlenJobs;
using engine::VarlenTransforms;

// A checked varlen backward call: plans its sequences and runs their jobs.
class VarlenBackward {
 public:
  VarlenBackward(const VarlenInputs& inputs, const AttentionResults& results,
                 const ConstAnyTensor& d_out, const AttentionGradients& gradients)
      : given_(inputs),
        inputs_(inputs),
        results_(results),
        d_out_(d_out),
        gradients_(gradients),
        transforms_(inputs) {}

  Status run(Context& context) {
    // Memory is reserved and the LSE checked before anything is written.
    MULTIHEAD_TRY(transform(context));
    MULTIHEAD_TRY(plans_.reserve(given_, context));
    const VarlenJobs jobs = plans_.plan(context, [&](size_t s) { return plan_of(s); });
    MULTIHEAD_TRY(reserve(jobs, context));
    const int threads = engine::threads_for(jobs.operations, context.threads());
    const engine::Scratch& scratch = engine::scratch_of(context);
    if (results_.check_lse) {
      MULTIHEAD_TRY(check_lse(threads, context));
    }
    const int64_t heads = given_.q.shape[1];
    // Without a query there may be any number of heads.
    const int64_t rows = given_.q.shape[0] == 0 ? 0 : sequences() * heads;
    engine::parallel_for(context, "row sums", threads, rows, [&](int64_t index, int thread) {
      const BackwardPlan& plan = plans_.plans()[static_cast<size_t>(index / heads)];
      if (index % heads == 0) engine::reset_semaphores(plan);
      cpu::backward_rows(plan.params, 0, index % heads, scratch.thread_memory(thread));
    });
    MULTIHEAD_TRY(plans_.for_jobs(context, "attention backward", jobs,
                                  [&](const BackwardPlan& plan, int64_t index, int thread) {
                                    engine::run_backward_job(plan, index,
                                                             scratch.thread_memory(thread));
                                  }));
    if (!gradients_.d_sinks.empty()) sum_sinks(threads, context);
    return transforms_.does_nothing() ? Status() : transform_back(context);
  }

 private:
  int64_t sequences() const { return static_cast<int64_t>(given_.sequences()); }

  Status transform(Context& context) {
    if (transforms_.does_nothing()) return {};
    return engine::transform_varlen(transforms_, inputs_, context);
  }

  AttentionOptions options_of(size_t s) const {
    AttentionOptions options = engine::options_of_sequence(given_.options, s);
    options.qk_norm = {};
    options.rope = {};
    return options;
  }
  ConstAnyTensor queries_of(const ConstAnyTensor& packed, size_t s) const {
    return sequence_of(packed, given_.cu_q[s], given_.cu_q[s + 1]);
  }
  ConstAnyTensor keys_of(const ConstAnyTensor& packed, size_t s) const {
    return sequence_of(packed, given_.cu_k[s], given_.cu_k[s + 1]);
  }
  BackwardPlan plan_of(size_t s) const {
    const int64_t first_query = given_.cu_q[s], end_query = given_.cu_q[s + 1];
    const int64_t first_key = given_.cu_k[s], end_key = given_.cu_k[s + 1];
    return engine::plan_backward(
        {queries_of(inputs_.q, s),
         keys_of(inputs_.k, s),
         keys_of(inputs_.v, s),
         options_of(s),
         {.out = queries_of(results_.out, s), .lse = lse_of(results_.lse, first_query, end_query)},
         queries_of(d_out_, s),
         {.d_q = rows_of(gradients_.d_q, first_query, end_query),
          .d_k = rows_of(gradients_.d_k, first_key, end_key),
          .d_v = rows_of(gradients_.d_v, first_key, end_key),
          .d_sinks = gradients_.d_sinks}},
        given_.shape_of(s));
  }

  Status reserve(const VarlenJobs& jobs, Context& context) {
    const auto lay_out = [&](void* memory) {
      rules::Arena take(memory);
      take(sinks_, given_.sequences() * gradients_.d_sinks.size());
      for (BackwardPlan& plan : plans_.plans()) engine::lay_out_backward(plan, take);
      return take.bytes();
    };
    const uint64_t bytes = lay_out(nullptr);
    engine::Scratch& scratch = engine::scratch_of(context);
    if (!scratch.gradients().reserve(bytes)) return Status::out_of_memory(bytes);
    lay_out(scratch.gradients().data());
    if (!transforms_.does_nothing()) {
      for (const auto& [x, d_gain] :
           {std::pair{&given_.q, gradients_.d_q_gain}, {&given_.k, gradients_.d_k_gain}}) {
        MULTIHEAD_TRY(
            engine::reserve_for_transform_back(sequence_of(*x, 0, x->shape[0]), d_gain, context));
      }
    }
    return scratch.reserve(context.threads(), jobs.scratch_bytes);
  }

  // Returns the error of the first sequence that has one.
  Status check_lse(int threads, const Context& context) const {
    std::atomic<int64_t> first = sequences();
    const auto check = [&](int64_t place) {
      return engine::check_lse(plans_.plans()[static_cast<size_t>(place)].params);
    };
    engine::parallel_for(context, "check lse", threads, sequences(), [&](int64_t place, int) {
      if (check(place).ok()) return;
      const auto s = static_cast<int64_t>(plans_.sequence(static_cast<size_t>(place)));
      int64_t known = first;
      while (s < known && !first.compare_exchange_weak(known, s)) {
      }
    });
    for (int64_t place = 0; place < sequences(); ++place) {
      if (static_cast<int64_t>(plans_.sequence(static_cast<size_t>(place))) == first) {
        return check(place);
      }
    }
    return {};
  }

  // Computes each sequence's part of d_sinks, then adds the parts in the order of the sequences.
  void sum_sinks(int threads, const Context& context) {
    const std::span<float> total = gradients_.d_sinks;
    const auto part_of = [&](size_t s) {
      return std::span(sinks_ + s * total.size(), total.size());
    };
    engine::parallel_for(context, "sinks", threads, sequences(), [&](int64_t place, int) {
      const auto at = static_cast<size_t>(place);
      engine::differentiate_sinks(plans_.plans()[at].params, part_of(plans_.sequence(at)), nullptr);
    });
    std::fill(total.begin(), total.end(), 0.0F);
    for (size_t s = 0; s < given_.sequences(); ++s) {
      for (size_t head = 0; head < total.size(); ++head) total[head] += part_of(s)[head];
    }
  }

  // Turns the gradients of the transformed queries and keys into gradients of the given q and k.
  Status transform_back(Context& context) const {
    const struct {
      const ConstAnyTensor& x;
      const engine::Transform& rule;
      const Tensor& gradient;
      std::span<float> d_gain;
    } operands[] = {{given_.q, transforms_.queries, gradients_.d_q, gradients_.d_q_gain},
                    {given_.k, transforms_.keys, gradients_.d_k, gradients_.d_k_gain}};
    for (const auto& [x, rule, gradient, d_gain] : operands) {
      if (!gradient.given()) continue;
      const int64_t tokens = x.shape[0];
      MULTIHEAD_TRY(engine::transform_back(sequence_of(x, 0, tokens), rule,
                                           rows_of(gradient, 0, tokens), d_gain, context));
    }
    return {};
  }

  const VarlenInputs given_;
  VarlenInputs inputs_;  // transformed
  const AttentionResults& results_;
  const ConstAnyTensor& d_out_;
  const AttentionGradients& gradients_;
  const VarlenTransforms transforms_;
  engine::VarlenPlans<BackwardPlan> plans_;
  float* sinks_ = nullptr;  // (sequences, H_q) parts of d_sinks
};

}  // namespace

Status attention_varlen_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                 std::span<const int32_t> cu_k, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context) {
  return engine::memory_guard([&]() -> Status {
    engine::AttentionShape shape;
    MULTIHEAD_TRY(engine::validate_varlen_backward(q, k, v, cu_q, cu_k, options, results, d_out,
                                                   gradients, shape));
    MULTIHEAD_TRY(engine::validate_apart({q, k, v, options, results, d_out, gradients}));
    return VarlenBackward({q, k, v, cu_q, cu_k, options}, results, d_out, gradients).run(context);
  });
}

}  // namespace multihead
