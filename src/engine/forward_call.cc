#include "engine/forward_call.h"

#include <cstdint>
#include <optional>

#include "engine/scratch.h"
#include "engine/transform.h"

namespace multihead::engine {
namespace {

bool transforms_inputs(const AttentionOptions& options) {
  return options.qk_norm.enabled || options.rope.style != Rope::Style::kNone;
}

std::optional<InputTransforms> transforms_of(const ConstAnyTensor& q, const ConstAnyTensor& k,
                                             const AttentionShape& shape,
                                             const AttentionOptions& options) {
  if (!transforms_inputs(options)) return {};
  return InputTransforms{.q = q,
                         .k = k,
                         .norm = options.qk_norm,
                         .rope = options.rope,
                         .positions = rules::make_visibility(options, shape.queries, shape.keys),
                         .lengths = options.kv_lengths};
}

// q and k as the kernels will see them: where they are transformed, without an address yet.
ForwardInputs inputs_of(const ConstAnyTensor& q, const ConstAnyTensor& k,
                        const AttentionOptions& options) {
  const bool as_given = !transforms_inputs(options);
  return {.q = stored_rows(as_given ? q : ConstTensor(nullptr, q.shape)),
          .k = stored_rows(as_given ? k : ConstTensor(nullptr, k.shape)),
          .v = {}};
}

Status reserve_transformed(const InputTransforms& transforms, Context& context) {
  const int64_t floats = transforms.q.shape.elements() + transforms.k.shape.elements();
  const uint64_t bytes = static_cast<uint64_t>(floats) * sizeof(float);
  return context.scratch().transformed().reserve(bytes) ? Status() : Status::out_of_memory(bytes);
}

Status transform_inputs(const InputTransforms& transforms, cpu::ForwardParams& params,
                        Context& context) {
  const auto& [q, k, norm, rope, positions, lengths] = transforms;
  const Transform of_q{.normalise = norm.enabled,
                       .gain = norm.q_gain,
                       .epsilon = norm.epsilon,
                       .rope = rope,
                       .positions = rope.q_positions,
                       .query_positions = &positions};
  Transform of_k = of_q;
  of_k.gain = norm.k_gain;
  of_k.positions = rope.k_positions;
  of_k.query_positions = nullptr;
  of_k.lengths = lengths;

  if (Status status = reserve_transformed(transforms, context); !status.ok()) return status;
  const Tensor new_q(static_cast<float*>(context.scratch().transformed().data()), q.shape);
  const Tensor new_k(new_q.data + q.shape.elements(), k.shape);
  if (Status status = transform_rows(q, of_q, new_q, context); !status.ok()) return status;
  if (Status status = transform_rows(k, of_k, new_k, context); !status.ok()) return status;
  params.q.data = new_q.data;
  params.k.data = new_k.data;
  return {};
}

}  // namespace

Status validate_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                     const AttentionOptions& options, const AttentionOutputs& outputs,
                     AttentionShape& shape) {
  if (Status status = validate_inputs(q, k, v, shape); !status.ok()) return status;
  if (Status status = validate_options(options, shape); !status.ok()) return status;
  return validate_outputs(outputs, shape);
}

ForwardCall plan_call(const ConstAnyTensor& q, const ConstAnyTensor& k, const ConstAnyTensor& v,
                      const AttentionShape& shape, const AttentionOptions& options,
                      const AttentionOutputs& outputs) {
  ForwardInputs inputs = inputs_of(q, k, options);
  inputs.v = stored_rows(v);
  return {.plan = plan_forward(inputs, shape, options, outputs),
          .transforms = transforms_of(q, k, shape, options)};
}

ForwardCall plan_scores_call(const ConstAnyTensor& q, const ConstAnyTensor& k,
                             const AttentionShape& shape, const AttentionOptions& options,
                             const ScoreCapture& capture) {
  return {.plan = plan_scores(inputs_of(q, k, options), shape, options, capture),
          .transforms = transforms_of(q, k, shape, options)};
}

Status reserve_scratch(const ForwardCall& call, Context& context) {
  if (call.transforms) {
    if (Status status = reserve_transformed(*call.transforms, context); !status.ok()) return status;
    if (Status status =
            reserve_for_transform(call.transforms->rope, call.transforms->q.shape[3], context);
        !status.ok()) {
      return status;
    }
  }
  return reserve_scratch(call.plan, context);
}

Status run(ForwardCall& call, Context& context) {
  if (call.transforms) {
    if (Status status = transform_inputs(*call.transforms, call.plan.params, context);
        !status.ok()) {
      return status;
    }
  }
  return run_forward(call.plan, context);
}

}  // namespace multihead::engine
