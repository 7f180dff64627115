#include "cuda/plan/backward_plan.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cuda/plan/plan.h"
#include "cuda/runtime/runtime.h"
#include "engine/attention/plan.h"
#include "engine/varlen/varlen.h"
#include "rules/arena.h"
#include "rules/attention_params.h"

namespace multihead::cuda {
namespace {

using rules::AttentionParams;

const char* why_not_mma(const BackwardParams& params) {
  if (const char* const objection = why_not_mma(params.forward); objection != nullptr) {
    return objection;
  }
  if (params.d_out.type != params.forward.call.q.type) return "d_out is not of q's type";
  const Extents extents = extents_of(params.forward);
  if (!is_aligned(params.d_out, {extents.batch, params.forward.call.heads, extents.queries})) {
    return "rows of d_out do not begin at multiples of 16 bytes";
  }
  return nullptr;
}

bool has_wide_rows(const BackwardParams& params) {
  const AttentionParams& call = params.forward.call;
  const Extents stored = extents_of(params.forward);
  const std::array<int64_t, 3> extents{stored.batch, call.heads, stored.queries};
  return params.out.type != DType::kF32 && params.out.type == params.d_out.type &&
         call.value_dim % 8 == 0 && is_aligned(params.out, extents) &&
         is_aligned(params.d_out, extents);
}

// Chooses the kernel, trying the fastest first. No other code chooses.
void choose_kernel(BackwardPlan& plan, const Device& device) {
  const BackwardParams& params = plan.params;
  if (params.d_q.data == nullptr && params.d_k.data == nullptr && params.d_v.data == nullptr) {
    return;
  }
  if (params.forward.call.batch * params.forward.call.kv_heads == 0) return;
  plan.params.wide_rows = has_wide_rows(params);
  plan.not_hopper = hopper_backward_objection(params, device);
  if (plan.not_hopper == nullptr) {
    plan.kernel = BackwardKernel::kHopper;
    return;
  }
  plan.not_mma = why_not_mma(params);
  plan.kernel = plan.not_mma == nullptr ? BackwardKernel::kMma : BackwardKernel::kF32;
}

// Places the arrays of a call in its workspace and sets workspace_bytes; null: only counts bytes.
void lay_out(BackwardPlan& plan, void* workspace) {
  rules::Arena arena(workspace);
  BackwardParams& params = plan.params;
  const AttentionParams& call = params.forward.call;
  lay_out_transforms(plan.transforms, params.forward.call, arena);
  const Extents stored = extents_of(params.forward);
  for (rules::Rows<float>* const of : {&params.delta, &params.reference}) {
    of->stride = {call.heads * stored.queries, stored.queries, 1};
    arena(of->data, static_cast<uint64_t>(stored.batch * call.heads * stored.queries));
  }
  for (auto* const back : {&plan.back_q, &plan.back_k}) {
    if (!back->has_value() || (*back)->d_gain == nullptr) continue;
    arena((*back)->parts, static_cast<uint64_t>(gain_parts((*back)->rotate) * call.head_dim));
  }
  plan.workspace_bytes = arena.bytes();
}

std::optional<RotateBackParams> back_params(const RotateParams& rotate,
                                            const rules::Rows<float>& gradient, int64_t longest,
                                            std::span<float> d_gain) {
  if (gradient.data == nullptr && d_gain.empty()) return {};
  return RotateBackParams{.rotate = rotate,
                          .gradient = gradient,
                          .longest = longest,
                          .d_gain = d_gain.empty() ? nullptr : d_gain.data()};
}

void finish(BackwardPlan& plan, const BackwardCall& call, const Device& device) {
  BackwardParams& params = plan.params;
  // An empty d_bias is not written, even if its address is not null.
  if (call.gradients.d_bias.shape.elements() == 0) params.d_bias.data = nullptr;
  params.d_sinks = call.gradients.d_sinks.empty() ? nullptr : call.gradients.d_sinks.data();
  if (plan.transforms) {
    const AttentionParams& forward = params.forward.call;
    plan.back_q =
        back_params(plan.transforms->q, params.d_q, forward.queries, call.gradients.d_q_gain);
    plan.back_k =
        back_params(plan.transforms->k, params.d_k, forward.keys, call.gradients.d_k_gain);
  }
  // Lay out first: transformed rows are aligned even if the tensors are not.
  lay_out(plan, nullptr);
  choose_kernel(plan, device);
}

int launch_kernel(const BackwardPlan& plan, const Device& device, StreamHandle stream) {
  switch (plan.kernel) {
    case BackwardKernel::kNone:
      return 0;
    case BackwardKernel::kHopper:
      return launch_backward_hopper(plan.params, device, stream);
    case BackwardKernel::kMma:
      return launch_backward_mma(plan.params, device, stream);
    case BackwardKernel::kF32:
      return launch_backward_f32(plan.params, device, stream);
  }
  return 0;
}

}  // namespace

BackwardPlan plan_backward(const BackwardCall& call, const engine::AttentionShape& shape,
                           const Device& device) {
  BackwardPlan plan{};
  const rules::BackwardParams params = engine::backward_params({.q = engine::stored_rows(call.q),
                                                                .k = engine::stored_rows(call.k),
                                                                .v = engine::stored_rows(call.v)},
                                                               shape, call);
  static_cast<rules::GradientParams&>(plan.params) = params;
  plan.params.forward.call = params.forward;
  plan.transforms = plan_transforms(call.q, call.k, call.options, plan.params.forward);
  finish(plan, call, device);
  return plan;
}

BackwardPlan plan_packed_backward(const BackwardCall& call, const PackedSequences& sequences,
                                  const Device& device) {
  const auto all = [](const ConstAnyTensor& packed) {
    return engine::sequence_of(packed, 0, packed.shape[0]);
  };
  const ConstAnyTensor q = all(call.q), k = all(call.k), v = all(call.v), d_out = all(call.d_out);
  const AttentionResults results{
      .out = all(call.results.out),
      .lse = engine::lse_of(call.results.lse, 0, call.results.lse.shape[1])};
  AttentionGradients gradients = call.gradients;
  gradients.d_q = engine::rows_of(gradients.d_q, 0, q.shape[2]);
  gradients.d_k = engine::rows_of(gradients.d_k, 0, k.shape[2]);
  gradients.d_v = engine::rows_of(gradients.d_v, 0, k.shape[2]);
  const BackwardCall of_all{q, k, v, call.options, results, d_out, gradients};
  BackwardPlan plan{};
  const rules::BackwardParams params = engine::backward_params(
      {.q = engine::stored_rows(q), .k = engine::stored_rows(k), .v = engine::stored_rows(v)},
      shape_of_all(call.q, call.k, call.v), of_all);
  static_cast<rules::GradientParams&>(plan.params) = params;
  plan.params.forward.call = params.forward;
  set_sequences(plan.params.forward, sequences);
  plan.transforms = plan_transforms(q, k, call.options, plan.params.forward);
  finish(plan, of_all, device);
  return plan;
}

Status run(BackwardPlan& plan, void* workspace, const Device& device, Stream stream) {
  lay_out(plan, workspace);
  const BackwardParams& params = plan.params;
  if (Status status = run_transforms(plan.transforms, stream); !status.ok()) return status;
  int error = launch_backward_rows(params, stream);
  if (error == 0) error = launch_kernel(plan, device, stream);
  if (error == 0 && params.d_bias.data != nullptr) error = launch_bias_gradient(params, stream);
  if (error == 0 && params.d_sinks != nullptr) error = launch_sink_gradient(params, stream);
  for (const auto* const back : {&plan.back_q, &plan.back_k}) {
    if (error == 0 && back->has_value()) error = launch_rotate_back(**back, stream);
  }
  return status_of(error);
}

std::string explain(const BackwardPlan& plan, const Device& device) {
  std::string text;
  switch (plan.kernel) {
    case BackwardKernel::kNone:
      return "nothing to compute";
    case BackwardKernel::kHopper:
      text = "wgmma and TMA";
      break;
    case BackwardKernel::kMma:
      text = "mma.sync";
      break;
    case BackwardKernel::kF32:
      text = "f32";
      break;
  }
  text += " on compute capability " + std::to_string(device.compute_capability / 10) + "." +
          std::to_string(device.compute_capability % 10);
  if (plan.not_hopper != nullptr) text += std::string("; not wgmma, since ") + plan.not_hopper;
  if (plan.not_mma != nullptr) text += std::string("; not mma.sync, since ") + plan.not_mma;
  if (plan.transforms) text += "; q and k are transformed before, and their gradients back";
  return text;
}

}  // namespace multihead::cuda
