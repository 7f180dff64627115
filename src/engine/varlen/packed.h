// Plans each sequence of a varlen call, and joins the plans' jobs in one list, so that many short
// sequences use all threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "multihead/attention.h"

namespace multihead::engine {

// Checked inputs of a varlen call.
struct PackedInputs {
  ConstAnyTensor q, k, v;               // (T_q, H_q, d_k), (T_k, H_kv, d_k), (T_k, H_kv, d_v)
  std::span<const int32_t> cu_q, cu_k;  // first row of each sequence, then the end of the last
  const AttentionOptions& options;

  size_t sequences() const { return cu_q.size() - 1; }
  AttentionShape shape_of(size_t sequence) const;
};

// QK-norm and RoPE of all tokens at once. Positions start at 0 in each sequence.
class PackedTransforms {
 public:
  explicit PackedTransforms(const PackedInputs& inputs);
  PackedTransforms(const PackedTransforms&) = delete;
  PackedTransforms& operator=(const PackedTransforms&) = delete;

  bool does_nothing() const { return of_queries.does_nothing(); }

 private:
  rules::Visibility positions_;

 public:
  Transform of_queries, of_keys;
};

// Reserves the memory of transform_packed(). Errors: kMemory.
Status reserve_for_transform(const PackedInputs& inputs, Context& context);

// Replaces q and k by transformed copies in the context's memory.
Status transform_packed(const PackedTransforms& transforms, PackedInputs& inputs, Context& context);

// Sets `order` to the indices of the sequences by work (queries times keys), largest first. If the
// largest started late, the other threads would be idle at the end.
void order_by_work(const PackedInputs& inputs, std::span<int32_t> order);

// Totals of the jobs of all plans.
struct PackedJobs {
  int64_t count = 0;
  uint64_t scratch_bytes = 0;  // per thread
  double operations = 0;       // upper bound of multiplications and additions
};

// Plans of all sequences, largest work first, in the context's memory. A Plan has jobs(),
// scratch_bytes and operations.
template <class Plan>
class PackedPlans {
 public:
  // Errors: kMemory.
  Status reserve(const PackedInputs& inputs, Context& context) {
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

  // Calls set_plan(plan, sequence) for each plan, on all threads: planning a sequence takes about
  // as long as the attention of ten tokens.
  template <class SetPlan>
  PackedJobs plan(Context& context, const SetPlan& set_plan) {
    constexpr int64_t kPlansOfJob = 16;
    const auto count = static_cast<int64_t>(plans_.size());
    const int64_t blocks = (count + kPlansOfJob - 1) / kPlansOfJob;
    constexpr double kOperationsOfPlan = 5e4;
    parallel_for(threads_for(kOperationsOfPlan * static_cast<double>(count), context.threads()),
                 blocks, [&](int64_t block, int) {
                   const int64_t end = std::min(count, (block + 1) * kPlansOfJob);
                   for (int64_t place = block * kPlansOfJob; place < end; ++place) {
                     const auto at = static_cast<size_t>(place);
                     set_plan(*std::construct_at(&plans_[at]), sequence(at));
                   }
                 });
    PackedJobs jobs;
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

  // Calls run(plan, index, thread) for every job of every plan, in order.
  template <class Run>
  void for_jobs(int threads, const PackedJobs& jobs, const Run& run) const {
    parallel_for(threads, jobs.count, [&](int64_t index, int thread) {
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
