// Varlen calls (packed sequences), forward and backward: their checks, the views of a sequence, and
// the plans of all sequences.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <type_traits>

#include "engine/attention/plan.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/runtime/jobs.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "multihead/attention.h"
#include "multihead/attention_backward.h"
#include "rules/integers.h"
#include "rules/shared.h"

namespace multihead::engine {

// Checks the inputs and options of a varlen call, except the checks that attention() makes itself.
MULTIHEAD_SHARED Status validate_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                        const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                                        std::span<const int32_t> cu_k,
                                        const AttentionOptions& options,
                                        Values values = Values::kReadable);

// Checks the outputs of a varlen call.
MULTIHEAD_SHARED Status validate_varlen_outputs(const ConstAnyTensor& q, const ConstAnyTensor& v,
                                                const AttentionOutputs& outputs);

// Checks the results, d_out and the gradients of q, k and v of attention_varlen_backward().
MULTIHEAD_SHARED Status validate_varlen_tensors(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                                const ConstAnyTensor& v,
                                                const AttentionResults& results,
                                                const ConstAnyTensor& d_out,
                                                const AttentionGradients& gradients);

// Makes all checks of attention_varlen_backward() except the check of the LSE. Sets `shape` to the
// shape of an empty sequence.
MULTIHEAD_SHARED Status validate_varlen_backward(
    const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
    std::span<const int32_t> cu_q, std::span<const int32_t> cu_k, const AttentionOptions& options,
    const AttentionResults& results, const ConstAnyTensor& d_out,
    const AttentionGradients& gradients, AttentionShape& shape, Values values = Values::kReadable);

// Returns rows first .. last - 1 of a packed tensor (T, H, d), as (1, H, rows, d).
template <class View>
View sequence_of(const View& packed, int64_t first, int64_t last) {
  View view = packed;
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                  const char, char>;
  const int64_t step = first * packed.strides[0] * bytes_of(packed.dtype);
  view.data = packed.data == nullptr ? nullptr : static_cast<Byte*>(packed.data) + step;
  view.shape = {1, packed.shape[1], last - first, packed.shape[2]};
  // Keeps the last stride, so that attention() refuses strides other than 1.
  view.strides = {0, packed.strides[1], packed.strides[0], packed.strides[2]};
  return view;
}

// Returns rows first .. last - 1 of a gradient, as sequence_of(); an absent gradient stays absent.
MULTIHEAD_SHARED Tensor rows_of(const Tensor& packed, int64_t first, int64_t last);

// Returns rows first .. last - 1 of an LSE (H, T), as (1, H, rows).
template <class T>
TensorView<T> lse_of(const TensorView<T>& packed, int64_t first, int64_t last) {
  const bool has_rows = packed.shape.elements() != 0;  // else the address may be null
  return {has_rows ? packed.data + first * packed.strides[1] : nullptr,
          {1, packed.shape[0], last - first},
          {0, packed.strides[0], packed.strides[1]}};
}

// Adds the sequence's index to the seed; otherwise all sequences would drop the same weights.
inline AttentionOptions options_of_sequence(const AttentionOptions& options, size_t sequence) {
  AttentionOptions shifted = options;
  shifted.dropout.seed += static_cast<uint64_t>(sequence) << 32U;
  return shifted;
}

// Checked inputs of a varlen call.
struct VarlenInputs {
  ConstAnyTensor q, k, v;               // (T_q, H_q, d_k), (T_k, H_kv, d_k), (T_k, H_kv, d_v)
  std::span<const int32_t> cu_q, cu_k;  // first row of each sequence, then the end of the last
  const AttentionOptions& options;

  size_t sequences() const { return cu_q.size() - 1; }
  AttentionShape shape_of(size_t sequence) const;
};

// QK-norm and RoPE of all tokens at once. Positions start at 0 in each sequence.
class VarlenTransforms {
 public:
  explicit VarlenTransforms(const VarlenInputs& inputs);
  VarlenTransforms(const VarlenTransforms&) = delete;
  VarlenTransforms& operator=(const VarlenTransforms&) = delete;

  bool does_nothing() const { return queries.does_nothing(); }

 private:
  rules::Visibility positions_;

 public:
  Transform queries, keys;
};

// Reserves the memory of transform_varlen(). Errors: kMemory.
Status reserve_for_transform(const VarlenInputs& inputs, Context& context);

// Replaces q and k by transformed copies in the context's memory.
Status transform_varlen(const VarlenTransforms& transforms, VarlenInputs& inputs, Context& context);

// Sets `order` to the indices of the sequences by work (queries times keys), largest first. If the
// largest started late, the other threads would be idle at the end.
void order_by_work(const VarlenInputs& inputs, std::span<int32_t> order);

// Totals of the jobs of all plans.
struct VarlenJobs {
  int64_t count = 0;
  uint64_t scratch_bytes = 0;  // per thread
  double operations = 0;       // upper bound of multiplications and additions
};

// Plans of all sequences, largest work first, in the context's memory, with their jobs in one list,
// so that many short sequences use all threads. A Plan is a finished ForwardPlan or BackwardPlan.
template <class Plan>
class VarlenPlans {
 public:
  // Errors: kMemory.
  Status reserve(const VarlenInputs& inputs, Context& context) {
    static_assert(std::is_trivially_copyable_v<Plan>);
    const size_t count = inputs.sequences();
    const uint64_t bytes = count * (sizeof(Plan) + sizeof(int64_t) + sizeof(int32_t));
    Buffer& memory = scratch_of(context).plans();
    if (!memory.reserve(bytes)) return Status::out_of_memory(bytes);
    plans_ = {static_cast<Plan*>(memory.data()), count};
    first_job_ = {reinterpret_cast<int64_t*>(plans_.data() + count), count};
    order_ = {reinterpret_cast<int32_t*>(first_job_.data() + count), count};
    order_by_work(inputs, order_);
    return {};
  }

  // Makes each plan by make_plan(sequence), on all threads: planning a sequence takes about as long
  // as the attention of ten tokens.
  template <class MakePlan>
  VarlenJobs plan(Context& context, const MakePlan& make_plan) {
    constexpr int64_t kPlansOfJob = 16;
    const auto count = static_cast<int64_t>(plans_.size());
    const int64_t blocks = rules::ceil_div(count, kPlansOfJob);
    constexpr double kOperationsOfPlan = 5e4;
    parallel_for(context, "plan",
                 threads_for(kOperationsOfPlan * static_cast<double>(count), context.threads()),
                 blocks, [&](int64_t block, int) {
                   const int64_t end = std::min(count, (block + 1) * kPlansOfJob);
                   for (int64_t place = block * kPlansOfJob; place < end; ++place) {
                     const auto at = static_cast<size_t>(place);
                     // std::construct_at() would copy the plan.
                     Plan* const plan =
                         ::new (static_cast<void*>(&plans_[at])) Plan(make_plan(sequence(at)));
                     finish_plan(*plan, 1);
                   }
                 });
    VarlenJobs jobs;
    for (size_t place = 0; place < plans_.size(); ++place) {
      const Plan& plan = plans_[place];
      first_job_[place] = jobs.count;
      jobs.count += plan.jobs();
      jobs.scratch_bytes = std::max(jobs.scratch_bytes, plan.scratch_bytes);
      jobs.operations += plan.operations;
    }
    return jobs;
  }

  std::span<Plan> plans() const { return plans_; }
  // Returns the sequence of the plan at `place`.
  size_t sequence(size_t place) const { return static_cast<size_t>(order_[place]); }

  // Calls run(plan, index, thread) for every job of every plan, in order. Errors: kAborted.
  template <class Run>
  Status for_jobs(const Context& context, const char* step, const VarlenJobs& jobs,
                  const Run& run) const {
    const int threads = threads_for(jobs.operations, context.threads());
    return parallel_for_or_abort(
        context, step, threads, jobs.count, [&](int64_t index, int thread) {
          const auto after = std::upper_bound(first_job_.begin(), first_job_.end(), index);
          const auto place = static_cast<size_t>(after - first_job_.begin() - 1);
          run(plans_[place], index - first_job_[place], thread);
        });
  }

 private:
  std::span<Plan> plans_;
  std::span<int64_t> first_job_;  // of each plan
  std::span<int32_t> order_;      // the sequence of each plan
};

}  // namespace multihead::engine
