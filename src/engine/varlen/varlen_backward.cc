#include "engine/varlen/varlen.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "engine/attention/backward.h"
#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/error/guard.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "engine/varlen/packed.h"
#include "multihead/attention_backward.h"
#include "rules/arena.h"

namespace multihead::engine {
namespace {

Status validate_packed_tensors(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, const AttentionResults& results,
                               const ConstAnyTensor& d_out, const AttentionGradients& gradients) {
  const Dims out_shape{q.shape[0], q.shape[1], v.shape[2]};
  for (const Status& status :
       {validate_exact(Name::kOut, Axes::kPackedOut, results.out, out_shape),
        validate_exact(Name::kLse, Axes::kPackedLse, results.lse, {q.shape[1], q.shape[0]}),
        validate_exact(Name::kDOut, Axes::kPackedOut, d_out, out_shape)}) {
    if (!status.ok()) return status;
  }
  const struct {
    Name name;
    Axes axes;
    const Tensor& tensor;
    const Dims& shape;
  } of[] = {{Name::kDQ, Axes::kPackedQ, gradients.d_q, q.shape},
            {Name::kDK, Axes::kPackedK, gradients.d_k, k.shape},
            {Name::kDV, Axes::kPackedV, gradients.d_v, v.shape}};
  for (const auto& [name, axes, tensor, shape] : of) {
    if (!tensor.given()) continue;
    if (Status status = validate_exact(name, axes, tensor, shape); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Tensor rows_of(const Tensor& packed, int64_t first, int64_t last) {
  if (!packed.given()) return {};
  const AnyTensor rows = sequence_of(AnyTensor(packed), first, last);
  return {static_cast<float*>(rows.data), rows.shape, rows.strides};
}

Status validate_packed_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                std::span<const int32_t> cu_k, const AttentionOptions& options,
                                const AttentionResults& results, const ConstAnyTensor& d_out,
                                const AttentionGradients& gradients, AttentionShape& shape,
                                Values values) {
  Status status = validate_packed(q, k, v, cu_q, cu_k, options, values);
  if (status.ok()) status = validate_packed_tensors(q, k, v, results, d_out, gradients);
  if (!status.ok()) return status;
  // Runs all checks of attention_backward() on an empty sequence.
  const auto empty = [](const auto& packed) { return sequence_of(packed, 0, 0); };
  AttentionGradients to = gradients;
  to.d_q = rows_of(gradients.d_q, 0, 0);
  to.d_k = rows_of(gradients.d_k, 0, 0);
  to.d_v = rows_of(gradients.d_v, 0, 0);
  status = validate_inputs(empty(q), empty(k), empty(v), shape);
  if (status.ok()) status = validate_options(options, shape, values);
  if (!status.ok()) return status;
  return validate_backward(options, {.out = empty(results.out), .lse = lse_of(results.lse, 0, 0)},
                           empty(d_out), to, shape);
}

}  // namespace multihead::engine

namespace multihead {
namespace {

using engine::AttentionPlan;
using engine::AttentionShape;
using engine::BackwardPlan;
using engine::CheckedRow;
using engine::lse_of;
using engine::PackedInputs;
using engine::PackedJobs;
using engine::PackedTransforms;
using engine::rows_of;
using engine::sequence_of;

// A checked varlen backward call: plans its sequences and runs their jobs.
class PackedBackward {
 public:
  PackedBackward(const PackedInputs& inputs, const AttentionResults& results,
                 const ConstAnyTensor& d_out, const AttentionGradients& gradients)
      : given_(inputs),
        inputs_(inputs),
        results_(results),
        d_out_(d_out),
        gradients_(gradients),
        transforms_(inputs) {}

  Status run(Context& context) {
    // Memory is reserved and the LSE checked before anything is written.
    if (Status status = transform(context); !status.ok()) return status;
    if (Status status = plans_.reserve(given_, context); !status.ok()) return status;
    const PackedJobs jobs =
        plans_.plan(context, [&](BackwardPlan& plan, size_t s) { plan = plan_of(s); });
    if (Status status = reserve(jobs, context); !status.ok()) return status;
    const int threads = engine::threads_for(jobs.operations, context.threads());
    const engine::Scratch& scratch = engine::scratch_of(context);
    if (results_.check_lse) {
      if (Status status = check_lse(threads, scratch); !status.ok()) return status;
    }
    const int64_t heads = given_.q.shape[1];
    // Without a query there may be any number of heads.
    const int64_t rows = given_.q.shape[0] == 0 ? 0 : sequences() * heads;
    engine::parallel_for(threads, rows, [&](int64_t index, int thread) {
      const BackwardPlan& plan = plans_.plans()[static_cast<size_t>(index / heads)];
      if (index % heads == 0) engine::begin_turns(plan);
      cpu::backward_rows(plan.params, 0, index % heads, scratch.of_thread(thread));
    });
    plans_.for_jobs(threads, jobs, [&](const BackwardPlan& plan, int64_t index, int thread) {
      engine::run_backward_job(plan, index, scratch.of_thread(thread));
    });
    if (!gradients_.d_sinks.empty()) sum_sinks(threads);
    return transforms_.does_nothing() ? Status() : transform_back(context);
  }

 private:
  int64_t sequences() const { return static_cast<int64_t>(given_.sequences()); }

  Status transform(Context& context) {
    if (transforms_.does_nothing()) return {};
    return engine::transform_packed(transforms_, inputs_, context);
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
  CheckedRow checked_row(size_t s) const {
    return {queries_of(inputs_.q, s), keys_of(inputs_.k, s), options_of(s), given_.shape_of(s)};
  }
  static AttentionPlan plan_of(const CheckedRow& checked, const ScoreCapture& capture) {
    const AttentionShape shape{.batch = 1,
                               .heads = 1,
                               .kv_heads = 1,
                               .queries = checked.q.shape[2],
                               .keys = checked.k.shape[2],
                               .head_dim = checked.k.shape[3]};
    return engine::plan_scores_call(checked.q, checked.k, shape, checked.options, capture).plan;
  }

  BackwardPlan plan_of(size_t s) const {
    const int64_t first_query = given_.cu_q[s], end_query = given_.cu_q[s + 1];
    const int64_t first_key = given_.cu_k[s], end_key = given_.cu_k[s + 1];
    BackwardPlan plan = engine::plan_backward(
        queries_of(inputs_.q, s), keys_of(inputs_.k, s), keys_of(inputs_.v, s), given_.shape_of(s),
        options_of(s),
        {.out = queries_of(results_.out, s), .lse = lse_of(results_.lse, first_query, end_query)},
        queries_of(d_out_, s),
        {.d_q = rows_of(gradients_.d_q, first_query, end_query),
         .d_k = rows_of(gradients_.d_k, first_key, end_key),
         .d_v = rows_of(gradients_.d_v, first_key, end_key),
         .d_sinks = gradients_.d_sinks});
    const CheckedRow checked = checked_row(s);
    if (checked.exists) {
      plan.scratch_bytes =
          std::max(plan.scratch_bytes, plan_of(checked, checked.capture(nullptr)).scratch_bytes);
    }
    return plan;
  }

  Status reserve(const PackedJobs& jobs, Context& context) {
    int64_t longest = 0;
    for (size_t s = 0; s < given_.sequences(); ++s) {
      longest = std::max(longest, checked_row(s).scores());
    }
    scores_.resize(static_cast<size_t>(context.threads()));
    const auto lay_out = [&](void* memory) {
      rules::Arena take(memory);
      for (float*& scores : scores_) take(scores, static_cast<uint64_t>(longest));
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
        if (Status status = engine::reserve_for_transform_back(sequence_of(*x, 0, x->shape[0]),
                                                               d_gain, context);
            !status.ok()) {
          return status;
        }
      }
    }
    return scratch.reserve(context.threads(), jobs.scratch_bytes);
  }

  Status check_lse_of(size_t s, float* scores, void* scratch) const {
    const CheckedRow checked = checked_row(s);
    if (!checked.exists) return {};
    const ScoreCapture capture = checked.capture(scores);
    if (checked.scores() > 0) {
      const AttentionPlan plan = plan_of(checked, capture);
      for (int64_t job = 0; job < plan.jobs(); ++job) {
        engine::run_block(plan, job, plan.jobs(), scratch);
      }
    }
    const ConstTensor lse = lse_of(results_.lse, given_.cu_q[s], given_.cu_q[s + 1]);
    return checked.check({scores, static_cast<size_t>(checked.scores())},
                         lse.data[checked.row * lse.strides[2]]);
  }

  // Returns the error of the first sequence that has one.
  Status check_lse(int threads, const engine::Scratch& scratch) const {
    std::atomic<int64_t> first = sequences();
    engine::parallel_for(threads, sequences(), [&](int64_t s, int thread) {
      float* const scores = scores_[static_cast<size_t>(thread)];
      if (check_lse_of(static_cast<size_t>(s), scores, scratch.of_thread(thread)).ok()) return;
      int64_t known = first;
      while (s < known && !first.compare_exchange_weak(known, s)) {
      }
    });
    if (first == sequences()) return {};
    return check_lse_of(static_cast<size_t>(first), scores_[0], scratch.of_thread(0));
  }

  // Computes each sequence's part of d_sinks, then adds the parts in the order of the sequences.
  void sum_sinks(int threads) {
    const std::span<float> total = gradients_.d_sinks;
    const auto part_of = [&](size_t s) {
      return std::span(sinks_ + s * total.size(), total.size());
    };
    engine::parallel_for(threads, sequences(), [&](int64_t place, int) {
      const auto at = static_cast<size_t>(place);
      engine::differentiate_sinks(plans_.plans()[at].params, part_of(plans_.sequence(at)), 1);
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
    } of[] = {{given_.q, transforms_.of_queries, gradients_.d_q, gradients_.d_q_gain},
              {given_.k, transforms_.of_keys, gradients_.d_k, gradients_.d_k_gain}};
    for (const auto& [x, rule, gradient, d_gain] : of) {
      if (!gradient.given()) continue;
      const int64_t tokens = x.shape[0];
      if (Status status = engine::transform_back(sequence_of(x, 0, tokens), rule,
                                                 rows_of(gradient, 0, tokens), d_gain, context);
          !status.ok()) {
        return status;
      }
    }
    return {};
  }

  const PackedInputs given_;
  PackedInputs inputs_;  // transformed
  const AttentionResults& results_;
  const ConstAnyTensor& d_out_;
  const AttentionGradients& gradients_;
  const PackedTransforms transforms_;
  engine::PackedPlans<BackwardPlan> plans_;
  std::vector<float*> scores_;  // one row of scores per thread
  float* sinks_ = nullptr;      // (sequences, H_q) parts of d_sinks
};

}  // namespace

Status attention_varlen_backward(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                 const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                 std::span<const int32_t> cu_k, const AttentionOptions& options,
                                 const AttentionResults& results, const ConstAnyTensor& d_out,
                                 const AttentionGradients& gradients, Context& context) {
  return engine::memory_guard([&]() -> Status {
    engine::AttentionShape shape;
    Status status = engine::validate_packed_backward(q, k, v, cu_q, cu_k, options, results, d_out,
                                                     gradients, shape);
    if (status.ok()) {
      status = engine::validate_apart(q, k, v, options, results, d_out, gradients);
    }
    if (!status.ok()) return status;
    return PackedBackward({q, k, v, cu_q, cu_k, options}, results, d_out, gradients).run(context);
  });
}

}  // namespace multihead
