#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>

#include "engine/guard.h"
#include "engine/plan.h"
#include "engine/run.h"
#include "engine/scratch.h"
#include "engine/threads.h"
#include "engine/transform.h"
#include "engine/validate.h"
#include "engine/varlen.h"
#include "multihead/attention.h"

namespace multihead {
namespace {

using engine::AttentionPlan;
using engine::Axes;
using engine::Message;
using engine::Name;
using engine::option_error;
using engine::sequence_of;
using engine::shape_error;

}  // namespace

Status engine::validate_packed(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                               std::span<const int32_t> cu_k, const AttentionOptions& options) {
  for (const Status& status : {engine::validate_rank(Name::kQ, Axes::kPackedQ, q, 3),
                               engine::validate_rank(Name::kK, Axes::kPackedK, k, 3),
                               engine::validate_rank(Name::kV, Axes::kPackedV, v, 3)}) {
    if (!status.ok()) return status;
  }
  if (v.shape[0] != k.shape[0]) {
    return shape_error(Name::kV, Message::kRowsAsKeys, v.shape, k.shape[0]);
  }
  for (const Status& status : {engine::validate_cumulative(Name::kCuQ, cu_q, q.shape[0]),
                               engine::validate_cumulative(Name::kCuK, cu_k, k.shape[0])}) {
    if (!status.ok()) return status;
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
    if (given) return option_error(name, Message::kNotPacked);
  }
  return {};
}

namespace {

Status validate_outputs(const ConstAnyTensor& q, const ConstAnyTensor& v,
                        const AttentionOutputs& outputs) {
  const struct {
    Name name;
    bool given;
  } per_batch[] = {{Name::kCaptures, !outputs.captures.empty()},
                   {Name::kWeights, outputs.weights.given()},
                   {Name::kDropoutMask, outputs.dropout_mask.given()}};
  for (const auto& [name, given] : per_batch) {
    if (given) return option_error(name, Message::kNotPacked);
  }
  const Dims out_shape{q.shape[0], q.shape[1], v.shape[2]};
  if (Status status = engine::validate_exact(Name::kOut, Axes::kPackedOut, outputs.out, out_shape);
      !status.ok()) {
    return status;
  }
  if (!outputs.lse.given()) return {};
  return engine::validate_exact(Name::kLse, Axes::kPackedLse, outputs.lse,
                                {q.shape[1], q.shape[0]});
}

// A checked call: its sequences, their plans and the order of their jobs.
class PackedCall {
 public:
  PackedCall(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
             std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
             const AttentionOptions& options, const AttentionOutputs& outputs)
      : q_(q), k_(k), v_(v), cu_q_(cu_q), cu_k_(cu_k), options_(options), outputs_(outputs) {}

  Status run(Context& context) {
    if (Status status = transform(context); !status.ok()) return status;
    if (Status status = order_jobs(context); !status.ok()) return status;
    engine::Scratch& scratch = engine::scratch_of(context);
    engine::parallel_for(context.threads(), jobs_, [&](int64_t index, int thread) {
      const auto after = std::upper_bound(first_job_.begin(), first_job_.end(), index);
      const auto place = static_cast<size_t>(after - first_job_.begin() - 1);
      const AttentionPlan& plan = plans_[place];
      engine::run_block(plan, index - first_job_[place], plan.jobs(), scratch.of_thread(thread));
    });
    return {};
  }

 private:
  size_t sequences() const { return cu_q_.size() - 1; }
  int64_t queries_of(size_t s) const { return cu_q_[s + 1] - cu_q_[s]; }
  int64_t keys_of(size_t s) const { return cu_k_[s + 1] - cu_k_[s]; }

  // QK-norm and RoPE of all tokens at once.
  Status transform(Context& context) {
    const rules::Visibility positions = rules::make_visibility(options_, 0, 0);
    const QkNorm& norm = options_.qk_norm;
    engine::Transform of_q{.normalise = norm.enabled,
                           .gain = norm.q_gain,
                           .epsilon = norm.epsilon,
                           .rope = options_.rope,
                           .query_positions = &positions,
                           .sequences = cu_q_,
                           .key_sequences = cu_k_};
    if (of_q.does_nothing()) return {};
    engine::Transform of_k = of_q;
    of_k.gain = norm.k_gain;
    of_k.query_positions = nullptr;
    of_k.sequences = cu_k_;
    engine::Buffer& memory = engine::scratch_of(context).transformed();
    const auto bytes =
        static_cast<uint64_t>(q_.shape.elements() + k_.shape.elements()) * sizeof(float);
    if (!memory.reserve(bytes)) return Status::out_of_memory(bytes);
    auto* to = static_cast<float*>(memory.data());
    for (const auto& [tensor, rule] : {std::pair{&q_, &of_q}, std::pair{&k_, &of_k}}) {
      const int64_t tokens = tensor->shape[0], heads = tensor->shape[1], width = tensor->shape[2];
      const Tensor moved(to, {1, heads, tokens, width});
      if (Status status =
              engine::transform_rows(sequence_of(*tensor, 0, tokens), *rule, moved, context);
          !status.ok()) {
        return status;
      }
      to += tensor->shape.elements();
      *tensor = {moved.data, DType::kF32, tensor->shape, {width, tokens * width, 1}};
    }
    return {};
  }

  // The longest sequences first: a long one that starts late would leave the other threads idle.
  Status order_jobs(Context& context) {
    static_assert(std::is_trivially_copyable_v<AttentionPlan>);
    const uint64_t bytes =
        sequences() * (sizeof(AttentionPlan) + sizeof(int64_t) + sizeof(int32_t));
    engine::Buffer& memory = engine::scratch_of(context).plans();
    if (!memory.reserve(bytes)) return Status::out_of_memory(bytes);
    plans_ = {static_cast<AttentionPlan*>(memory.data()), sequences()};
    first_job_ = {reinterpret_cast<int64_t*>(plans_.data() + sequences()), sequences()};
    const std::span order{reinterpret_cast<int32_t*>(first_job_.data() + sequences()), sequences()};
    std::iota(order.begin(), order.end(), 0);
    const auto takes_longer = [&](int32_t a, int32_t b) {
      const auto first = static_cast<size_t>(a), second = static_cast<size_t>(b);
      const int64_t work_a = queries_of(first) * keys_of(first);
      const int64_t work_b = queries_of(second) * keys_of(second);
      return work_a != work_b ? work_a > work_b : a < b;
    };
    // Not std::sort(), which is 2 kB longer in WebAssembly.
    std::make_heap(order.begin(), order.end(), takes_longer);
    std::sort_heap(order.begin(), order.end(), takes_longer);
    uint64_t scratch_bytes = 0;
    for (size_t place = 0; place < sequences(); ++place) {
      const AttentionPlan& plan =
          *std::construct_at(&plans_[place], plan_of(static_cast<size_t>(order[place])));
      first_job_[place] = jobs_;
      jobs_ += plan.jobs();
      scratch_bytes = std::max(scratch_bytes, plan.scratch_bytes);
    }
    return engine::scratch_of(context).reserve(context.threads(), scratch_bytes);
  }

  AttentionPlan plan_of(size_t s) const {
    const ConstAnyTensor q = sequence_of(q_, cu_q_[s], cu_q_[s + 1]);
    const ConstAnyTensor k = sequence_of(k_, cu_k_[s], cu_k_[s + 1]);
    const ConstAnyTensor v = sequence_of(v_, cu_k_[s], cu_k_[s + 1]);
    AttentionOutputs outputs{.out = sequence_of(outputs_.out, cu_q_[s], cu_q_[s + 1])};
    if (outputs_.lse.given()) outputs.lse = engine::lse_of(outputs_.lse, cu_q_[s], cu_q_[s + 1]);
    const AttentionOptions options = engine::options_of_sequence(options_, s);
    return engine::plan_attention({.q = engine::stored_rows(q),
                                   .k = engine::stored_rows(k),
                                   .v = engine::stored_rows(v),
                                   .packed = true},
                                  {.batch = 1,
                                   .heads = q.shape[1],
                                   .kv_heads = k.shape[1],
                                   .queries = q.shape[2],
                                   .keys = k.shape[2],
                                   .key_width = q.shape[3],
                                   .value_width = v.shape[3]},
                                  options, outputs);
  }

  ConstAnyTensor q_, k_, v_;
  std::span<const int32_t> cu_q_, cu_k_;
  const AttentionOptions& options_;
  const AttentionOutputs& outputs_;
  std::span<AttentionPlan> plans_;  // of the sequences, the longest first
  std::span<int64_t> first_job_;    // of each plan
  int64_t jobs_ = 0;
};

}  // namespace

Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        Context& context) {
  return engine::memory_guard([&]() -> Status {
    Status status = engine::validate_packed(q, k, v, cu_q, cu_k, options);
    if (status.ok()) status = validate_outputs(q, v, outputs);
    if (!status.ok()) return status;
    // An empty sequence goes through all checks of attention() before anything is written.
    const AttentionOutputs nothing{.out = sequence_of(outputs.out, 0, 0)};
    status = attention(sequence_of(q, 0, 0), sequence_of(k, 0, 0), sequence_of(v, 0, 0), options,
                       nothing, context);
    if (!status.ok()) return status;
    return PackedCall(q, k, v, cu_q, cu_k, options, outputs).run(context);
  });
}

}  // namespace multihead
