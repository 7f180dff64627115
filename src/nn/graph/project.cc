// Operations of which the members of a team compute parts: kProject, kActivateShare.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "engine/cache/cache_access.h"
#include "engine/error/error.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "nn/call_memory.h"
#include "nn/graph/kinds.h"

namespace multihead::nn {
namespace {

// Rows of a matrix of another type than f32 that are converted at a time.
constexpr int64_t kPanel = 256;

// True if this member of a team computes the queries, keys and values of exactly the heads that it
// caches and attends with. It then needs none of another member.
bool heads_are_own(const ForwardStep& step, const engine::Team& team) {
  const LayerParameters& p = *step.call.parameters;
  if (step.graph.norms_all_heads && p.q_norm.given()) return false;
  for (const Operation& op : step.graph.operations) {
    if (!op.kind->attends) continue;
    const Value &q = step.graph.value(op.in), &k = step.graph.value(op.in2);
    return p.q.is_share && p.k.is_share && p.v.is_share && step.call.cache != nullptr &&
           KVCache::Internals::is_share(*step.call.cache) && team.computes_own(k.heads, q.width) &&
           team.computes_own(k.heads, k.width);
  }
  return false;
}

// True if this member of a team computes the columns of the MLP's hidden layer alone that its
// activation then uses.
bool hidden_is_share(const ForwardStep& step) {
  const LayerParameters& p = *step.call.parameters;
  return engine::team_of(step.context) != nullptr && p.up.is_share &&
         (!p.gate.given() || p.gate.is_share);
}

bool keeps_own_outputs(const ForwardStep& step) {
  const engine::Team* const team = engine::team_of(step.context);
  if (team == nullptr || step.op->share == Operation::Share::kNone) return false;
  // Edits and captures see all heads.
  if (step.op->share == Operation::Share::kHeads) {
    return step.call.probe == nullptr && heads_are_own(step, *team);
  }
  return hidden_is_share(step);
}

}  // namespace

Status project(const ConstTensor& x, const Projection& projection, const Tensor& y,
               Context& context) {
  return linear(x, projection.weight, projection.bias.view(), y, context);
}

Status project_backward(const WeightMatrix& weight, const Tensor& d_y, const Tensor& d_x,
                        bool adds_to_d_x, Context& context) {
  engine::LinearBackward back{
      .x = {}, .weight = {}, .d_y = d_y, .d_x = d_x, .adds_to_d_x = adds_to_d_x};
  if (weight.type == WeightType::kF32) {
    back.weight = {static_cast<const float*>(weight.data), {weight.rows, weight.columns}};
    return engine::linear_backward(back, context);
  }
  engine::Buffer memory;
  float* panel = nullptr;
  MULTIHEAD_TRY(reserve_floats(memory, kPanel * weight.columns, panel));
  for (int64_t first = 0; first < weight.rows; first += kPanel) {
    const int64_t count = std::min(kPanel, weight.rows - first);
    std::vector<int32_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), static_cast<int32_t>(first));
    const Tensor part(panel, {count, weight.columns});
    MULTIHEAD_TRY(dequantize(weight, rows, part));
    back.weight = part;
    back.d_y = {d_y.data + first, {d_y.shape[0], count}, d_y.strides};
    MULTIHEAD_TRY(engine::linear_backward(back, context));
    back.adds_to_d_x = true;
  }
  return {};
}

Status project_forward(const ForwardStep& step) {
  const engine::KeepOwnOutputs own(keeps_own_outputs(step) ? engine::team_of(step.context)
                                                           : nullptr);
  return project(step.in(), step.call.parameters->*step.op->projection, step.out(), step.context);
}

Status project_backward(const BackwardStep& step) {
  const WeightMatrix& weight = (step.call.parameters->*step.op->projection).weight;
  if (weight.type == WeightType::kF32) return matrix_backward(step);
  if (step.call.gradients != nullptr) {
    MULTIHEAD_TRY(add_gradients(step.in(), step.d_out(), step.call.gradients->*step.op->projection,
                                step.context));
  }
  return project_backward(weight, step.d_out(), step.d_in(), step.adds, step.context);
}

Status activate_share_forward(const ForwardStep& step) {
  if (!hidden_is_share(step)) return activate_forward(step);
  // A member activates the columns that it computes, so that one exchange is enough.
  engine::Team& team = *engine::team_of(step.context);
  const Tensor hidden = step.out();
  const int64_t width = hidden.shape[1];
  const int64_t begin = team.first_output(width), end = team.end_output(width);
  if (begin < end) MULTIHEAD_TRY(activate_columns(step, begin, end));
  return team.exchange_outputs(hidden.data, hidden.shape[0], hidden.strides[0], width);
}

}  // namespace multihead::nn
