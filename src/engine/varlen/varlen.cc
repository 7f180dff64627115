#include "engine/varlen/varlen.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/attention/overlap.h"
#include "engine/attention/plan.h"
#include "engine/attention/run.h"
#include "engine/attention/validate.h"
#include "engine/error/guard.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/threads.h"
#include "engine/varlen/packed.h"
#include "multihead/attention.h"

namespace multihead {
namespace {

using engine::AttentionPlan;
using engine::Axes;
using engine::Message;
using engine::Name;
using engine::option_error;
using engine::PackedInputs;
using engine::PackedJobs;
using engine::PackedTransforms;
using engine::sequence_of;
using engine::shape_error;

}  // namespace

Status engine::validate_packed(const ConstAnyTensor& q, const ConstAnyTensor& k,
                               const ConstAnyTensor& v, std::span<const int32_t> cu_q,
                               std::span<const int32_t> cu_k, const AttentionOptions& options,
                               Values values) {
  for (const Status& status : {engine::validate_rank(Name::kQ, Axes::kPackedQ, q, 3),
                               engine::validate_rank(Name::kK, Axes::kPackedK, k, 3),
                               engine::validate_rank(Name::kV, Axes::kPackedV, v, 3)}) {
    if (!status.ok()) return status;
  }
  if (v.shape[0] != k.shape[0]) {
    return shape_error(Name::kV, Message::kRowsAsKeys, v.shape, k.shape[0]);
  }
  if (values == Values::kReadable || cu_q.empty()) {
    for (const Status& status : {engine::validate_cumulative(Name::kCuQ, cu_q, q.shape[0]),
                                 engine::validate_cumulative(Name::kCuK, cu_k, k.shape[0])}) {
      if (!status.ok()) return status;
    }
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

Status engine::validate_packed_outputs(const ConstAnyTensor& q, const ConstAnyTensor& v,
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

namespace {

// A checked varlen call: plans its sequences and runs their jobs.
class PackedCall {
 public:
  PackedCall(const PackedInputs& inputs, const AttentionOutputs& outputs)
      : inputs_(inputs), outputs_(outputs) {}

  Status run(Context& context) {
    if (Status status = transform(context); !status.ok()) return status;
    if (Status status = plans_.reserve(inputs_, context); !status.ok()) return status;
    const PackedJobs jobs =
        plans_.plan(context, [&](AttentionPlan& plan, size_t s) { plan = plan_of(s); });
    if (!plans_.plans().empty()) engine::last_call_of(context) = plans_.plans().front();
    if (Status status = engine::scratch_of(context).reserve(context.threads(), jobs.scratch_bytes);
        !status.ok()) {
      return status;
    }
    const engine::Scratch& scratch = engine::scratch_of(context);
    plans_.for_jobs(engine::threads_for(jobs.operations, context.threads()), jobs,
                    [&](const AttentionPlan& plan, int64_t index, int thread) {
                      engine::run_block(plan, index, plan.jobs(), scratch.of_thread(thread));
                    });
    return {};
  }

 private:
  Status transform(Context& context) {
    const PackedTransforms transforms(inputs_);
    return transforms.does_nothing() ? Status()
                                     : engine::transform_packed(transforms, inputs_, context);
  }

  AttentionPlan plan_of(size_t s) const {
    const auto& [q, k, v, cu_q, cu_k, options] = inputs_;
    const ConstAnyTensor of_q = sequence_of(q, cu_q[s], cu_q[s + 1]);
    const ConstAnyTensor of_k = sequence_of(k, cu_k[s], cu_k[s + 1]);
    const ConstAnyTensor of_v = sequence_of(v, cu_k[s], cu_k[s + 1]);
    AttentionOutputs outputs{.out = sequence_of(outputs_.out, cu_q[s], cu_q[s + 1])};
    if (outputs_.lse.given()) outputs.lse = engine::lse_of(outputs_.lse, cu_q[s], cu_q[s + 1]);
    return engine::plan_attention({.q = engine::stored_rows(of_q),
                                   .k = engine::stored_rows(of_k),
                                   .v = engine::stored_rows(of_v),
                                   .packed = true},
                                  inputs_.shape_of(s), engine::options_of_sequence(options, s),
                                  outputs);
  }

  PackedInputs inputs_;
  const AttentionOutputs& outputs_;
  engine::PackedPlans<AttentionPlan> plans_;
};

}  // namespace

Status attention_varlen(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                        std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        Context& context) {
  return engine::memory_guard([&]() -> Status {
    Status status = engine::validate_packed(q, k, v, cu_q, cu_k, options);
    if (status.ok()) status = engine::validate_packed_outputs(q, v, outputs);
    if (status.ok()) status = engine::validate_apart(q, k, v, options, outputs);
    if (!status.ok()) return status;
    // Runs all checks of attention() on an empty sequence before anything is written.
    const AttentionOutputs nothing{.out = sequence_of(outputs.out, 0, 0)};
    status = attention(sequence_of(q, 0, 0), sequence_of(k, 0, 0), sequence_of(v, 0, 0), options,
                       nothing, context);
    if (!status.ok()) return status;
    return PackedCall({q, k, v, cu_q, cu_k, options}, outputs).run(context);
  });
}

}  // namespace multihead
