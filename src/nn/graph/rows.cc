// Operations on rows: kNorm, kProjectF32, kActivate, kAdd.
#include <algorithm>
#include <cstdint>

#include "cpu/elementwise/gradients.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "multihead/elementwise.h"
#include "multihead/linear.h"
#include "nn/graph/kinds.h"

namespace multihead::nn {

Status normalize(NormKind kind, const ConstTensor& x, const NormParameters& norm, const Tensor& y,
                 Context& context) {
  if (!norm.given()) {
    if (x.data == y.data) return {};
    for (int64_t row = 0; row < x.shape[0]; ++row) {
      std::copy_n(x.data + row * x.strides[0], x.shape[1], y.data + row * y.strides[0]);
    }
    return {};
  }
  if (kind.rms) return rms_norm(x, norm.weight.view(), kind.eps, y, context);
  return layer_norm(x, norm.weight.view(), norm.bias.view(), kind.eps, y, context);
}

Status normalize_backward(NormKind kind, const ConstTensor& x, const NormParameters& norm,
                          const ConstTensor& d_y, const Tensor& d_x, bool adds_to_d_x,
                          const NormParameters& gradient, Context& context) {
  return engine::norm_backward({.x = x.data,
                                .weight = norm.weight.data,
                                .d_y = d_y.data,
                                .d_x = d_x.data,
                                .adds_to_d_x = adds_to_d_x,
                                .d_weight = gradient.weight.data,
                                .d_bias = gradient.bias.data,
                                .rows = x.shape[0],
                                .width = x.shape[1],
                                .eps = kind.eps,
                                .centered = !kind.rms},
                               context);
}

Status norm_forward(const ForwardStep& step) {
  return normalize(step.graph.norm, step.in(), step.call.parameters->*step.op->norm, step.out(),
                   step.context);
}

Status norm_backward(const BackwardStep& step) {
  const Operation& op = *step.op;
  const LayerParameters* const gradients = step.call.gradients;
  return normalize_backward(
      step.graph.norm, step.in(), step.call.parameters->*op.norm, step.d_out(), step.d_in(),
      step.adds && !step.gradients.same_place(op.in, op.out),
      gradients == nullptr ? NormParameters() : gradients->*op.norm, step.context);
}

namespace {

ConstTensor matrix_view(const WeightMatrix& matrix) {
  return {static_cast<const float*>(matrix.data), {matrix.rows, matrix.columns}};
}

void set_gradients(engine::LinearBackward& back, const Projection& gradient) {
  const WeightMatrix& matrix = gradient.weight;
  // Memory of gradients, which is written.
  auto* const d_weight = static_cast<float*>(const_cast<void*>(matrix.data));
  if (d_weight != nullptr) back.d_weight = {d_weight, {matrix.rows, matrix.columns}};
  back.d_bias = gradient.bias.data;
}

}  // namespace

Status add_gradients(const ConstTensor& x, const ConstTensor& d_y, const Projection& gradient,
                     Context& context) {
  engine::LinearBackward back{.x = x, .weight = {}, .d_y = d_y};
  set_gradients(back, gradient);
  return engine::linear_backward(back, context);
}

Status matrix_forward(const ForwardStep& step) {
  const Projection& projection = step.call.parameters->*step.op->projection;
  return linear(step.in(), matrix_view(projection.weight), projection.bias.view(), step.out(),
                step.context, step.call.attention->precision);
}

Status matrix_backward(const BackwardStep& step) {
  const Operation& op = *step.op;
  engine::LinearBackward back{.x = step.in(),
                              .weight = matrix_view((step.call.parameters->*op.projection).weight),
                              .d_y = step.d_out(),
                              .d_x = step.d_in(),
                              .adds_to_d_x = step.adds,
                              .precision = step.call.attention->precision};
  if (step.call.gradients != nullptr) set_gradients(back, step.call.gradients->*op.projection);
  return engine::linear_backward(back, step.context);
}

Status activate_columns(const ForwardStep& step, int64_t begin, int64_t end) {
  const ValueId second = step.op->in2;
  const auto columns = [&](ValueId id) {
    const Tensor all = step.frame.rows(id);
    return Tensor(all.data + begin, {all.shape[0], end - begin}, all.strides);
  };
  const Tensor from = columns(step.op->in), to = columns(step.op->out);
  return second == kNoValue
             ? activate(from, step.graph.activation, to, step.context)
             : activate_gated(from, columns(second), step.graph.activation, to, step.context);
}

Status activate_forward(const ForwardStep& step) {
  return activate_columns(step, 0, step.graph.value(step.op->out).width);
}

Status activate_backward(const BackwardStep& step) {
  const bool gated = step.op->in2 != kNoValue;
  const Tensor gate = step.in(), d_y = step.d_out(), d_gate = step.d_in();
  const Tensor x = gated ? step.values.rows(step.op->in2) : Tensor(),
               d_x = gated ? step.gradients.rows(step.op->in2) : Tensor();
  const int64_t width = gate.shape[1];
  // Rows without gaps are one.
  bool dense = true;
  for (const Tensor* array : {&gate, &d_y, &d_gate, &x, &d_x}) {
    dense = dense && (!array->given() || array->strides[0] == width);
  }
  engine::over_rows(gate.shape[0], width, step.context, [&](int64_t first, int64_t end) {
    const int64_t rows = dense ? end - first : 1;
    for (int64_t row = first; row < end; row += rows) {
      cpu::activation_backward_range({.gate = gate.data + row * gate.strides[0],
                                      .x = gated ? x.data + row * x.strides[0] : nullptr,
                                      .d_y = d_y.data + row * d_y.strides[0],
                                      .d_gate = d_gate.data + row * d_gate.strides[0],
                                      .d_x = gated ? d_x.data + row * d_x.strides[0] : nullptr,
                                      .count = rows * width,
                                      .activation = step.graph.activation},
                                     0, rows * width);
    }
  });
  return {};
}

Status add_forward(const ForwardStep& step) {
  const Operation& op = *step.op;
  engine::add(step.frame.data(op.in), step.frame.data(op.in2), step.frame.data(op.out),
              step.call.rows() * step.graph.value(op.out).width, step.context);
  return {};
}

Status add_backward(const BackwardStep& step) {
  const Tensor d_out = step.d_out();
  const Dims one{1, 1, d_out.shape[0], d_out.shape[1]};
  for (const ValueId id : {step.op->in, step.op->in2}) {
    float* const to = step.gradients.data(id);
    if (to != d_out.data) engine::copy_rows({d_out.data, one}, {to, one}, step.context);
  }
  return {};
}

}  // namespace multihead::nn
