#include "engine/varlen/varlen.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/attention/validate.h"
#include "engine/error/guard.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "multihead/attention.h"

namespace multihead {
namespace {

using engine::ForwardPlan;
using engine::sequence_of;
using engine::VarlenInputs;
using engine::VarlenJobs;
using engine::VarlenTransforms;

}  // namespace

Status engine::validate_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                               std::span<const int32_t> cu_k, const AttentionOptions& options,
                               Values values) {
  MULTIHEAD_TRY(engine::validate_rank(Name::kQ, Axes::kVarlenQ, q, 3));
  MULTIHEAD_TRY(engine::validate_rank(Name::kK, Axes::kVarlenK, k, 3));
  MULTIHEAD_TRY(engine::validate_rank(Name::kV, Axes::kVarlenV, v, 3));
  if (v.shape[0] != k.shape[0]) {
    return shape_error(Name::kV, Message::kRowsAsKeys, v.shape, k.shape[0]);
  }
  if (values == Values::kReadable || cu_q.empty()) {
    MULTIHEAD_TRY(engine::validate_cumulative(Name::kCuQ, cu_q, q.shape[0]));
    MULTIHEAD_TRY(engine::validate_cumulative(Name::kCuK, cu_k, k.shape[0]));
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

Status engine::validate_varlen_outputs(const ConstAnyTensor& q, const ConstAnyTensor& v,
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
  MULTIHEAD_TRY(engine::validate_exact(Name::kOut, Axes::kVarlenOut, outputs.out, out_shape));
  if (!outputs.lse.given()) return {};
  return engine::validate_exact(Name::kLse, Axes::kVarlenLse, outputs.lse,
                                {q.shape[1], q.shape[0]});
}

namespace engine {
namespace {

uint64_t bytes_of_copies(const VarlenInputs& inputs) {
  return static_cast<uint64_t>(inputs.q.shape.elements() + inputs.k.shape.elements()) *
         sizeof(float);
}

}  // namespace

AttentionShape VarlenInputs::shape_of(size_t sequence) const {
  return {.batch = 1,
          .heads = q.shape[1],
          .kv_heads = k.shape[1],
          .queries = cu_q[sequence + 1] - cu_q[sequence],
          .keys = cu_k[sequence + 1] - cu_k[sequence],
          .head_dim = q.shape[2],
          .value_dim = v.shape[2]};
}

VarlenTransforms::VarlenTransforms(const VarlenInputs& inputs)
    : positions_(rules::make_visibility(inputs.options, 0, 0)),
      queries{.normalize = inputs.options.qk_norm.given(),
              .gain = inputs.options.qk_norm.q_gain,
              .eps = inputs.options.qk_norm.eps,
              .rope = inputs.options.rope,
              .query_positions = &positions_,
              .sequences = inputs.cu_q,
              .key_sequences = inputs.cu_k},
      keys(queries) {
  keys.gain = inputs.options.qk_norm.k_gain;
  keys.query_positions = nullptr;
  keys.sequences = inputs.cu_k;
}

Status reserve_for_transform(const VarlenInputs& inputs, Context& context) {
  const uint64_t bytes = bytes_of_copies(inputs);
  if (!scratch_of(context).transformed().reserve(bytes)) return Status::out_of_memory(bytes);
  return reserve_for_transform(inputs.options.rope, inputs.q.shape[2], context);
}

Status transform_varlen(const VarlenTransforms& transforms, VarlenInputs& inputs,
                        Context& context) {
  MULTIHEAD_TRY(reserve_for_transform(inputs, context));
  auto* to = static_cast<float*>(scratch_of(context).transformed().data());
  const struct {
    ConstAnyTensor& tensor;
    const Transform& rule;
  } inputs_and_rules[] = {{inputs.q, transforms.queries}, {inputs.k, transforms.keys}};
  for (const auto& [tensor, rule] : inputs_and_rules) {
    const int64_t tokens = tensor.shape[0], heads = tensor.shape[1], width = tensor.shape[2];
    const Tensor moved(to, {1, heads, tokens, width});
    MULTIHEAD_TRY(transform_rows(sequence_of(tensor, 0, tokens), rule, moved, context));
    to += tensor.shape.elements();
    tensor = {moved.data, DType::kF32, tensor.shape, {width, tokens * width, 1}};
  }
  return {};
}

void order_by_work(const VarlenInputs& inputs, std::span<int32_t> order) {
  std::iota(order.begin(), order.end(), 0);
  const auto work_of = [&](int32_t sequence) {
    const AttentionShape shape = inputs.shape_of(static_cast<size_t>(sequence));
    return shape.queries * shape.keys;
  };
  const auto takes_longer = [&](int32_t a, int32_t b) {
    const int64_t work_a = work_of(a), work_b = work_of(b);
    return work_a != work_b ? work_a > work_b : a < b;
  };
  // std::sort() would add 2 kB to the WebAssembly module.
  std::make_heap(order.begin(), order.end(), takes_longer);
  std::sort_heap(order.begin(), order.end(), takes_longer);
}

}  // namespace engine

namespace {

// A checked varlen call: plans its sequences and runs their jobs.
class VarlenCall {
 public:
  VarlenCall(const VarlenInputs& inputs, const AttentionOutputs& outputs)
      : inputs_(inputs), outputs_(outputs) {}

  Status run(Context& context) {
    MULTIHEAD_TRY(transform(context));
    MULTIHEAD_TRY(plans_.reserve(inputs_, context));
    const VarlenJobs jobs = plans_.plan(context, [&](size_t s) { return plan_of(s); });
    if (!plans_.plans().empty()) engine::last_call_of(context) = plans_.plans().front().choice;
    MULTIHEAD_TRY(engine::scratch_of(context).reserve(context.threads(), jobs.scratch_bytes));
    const engine::Scratch& scratch = engine::scratch_of(context);
    return plans_.for_jobs(
        context, "attention", jobs, [&](const ForwardPlan& plan, int64_t index, int thread) {
          engine::run_block(plan, index, plan.jobs(), scratch.thread_memory(thread));
        });
  }

 private:
  Status transform(Context& context) {
    const VarlenTransforms transforms(inputs_);
    return transforms.does_nothing() ? Status()
                                     : engine::transform_varlen(transforms, inputs_, context);
  }

  ForwardPlan plan_of(size_t s) const {
    const auto& [q, k, v, cu_q, cu_k, options] = inputs_;
    AttentionOutputs outputs{.out = sequence_of(outputs_.out, cu_q[s], cu_q[s + 1])};
    if (outputs_.lse.given()) outputs.lse = engine::lse_of(outputs_.lse, cu_q[s], cu_q[s + 1]);
    return engine::plan_forward({.q = engine::stored_rows(sequence_of(q, cu_q[s], cu_q[s + 1])),
                                 .k = engine::stored_rows(sequence_of(k, cu_k[s], cu_k[s + 1])),
                                 .v = engine::stored_rows(sequence_of(v, cu_k[s], cu_k[s + 1])),
                                 .varlen = true},
                                inputs_.shape_of(s), engine::options_of_sequence(options, s),
                                outputs);
  }

  VarlenInputs inputs_;
  const AttentionOutputs& outputs_;
  engine::VarlenPlans<ForwardPlan> plans_;
};

}  // namespace

Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        Context& context) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(engine::validate_varlen(q, k, v, cu_q, cu_k, options));
    MULTIHEAD_TRY(engine::validate_varlen_outputs(q, v, outputs));
    MULTIHEAD_TRY(engine::validate_apart({q, k, v, options, outputs}));
    // Runs all checks of attention() on an empty sequence before anything is written.
    const AttentionOutputs nothing{.out = sequence_of(outputs.out, 0, 0)};
    MULTIHEAD_TRY(attention(sequence_of(q, 0, 0), sequence_of(k, 0, 0), sequence_of(v, 0, 0),
                            options, nothing, context));
    return VarlenCall({q, k, v, cu_q, cu_k, options}, outputs).run(context);
  });
}

}  // namespace multihead
