// A block as a list of operations. With D for dropout:
//
//   pre-norm    a = x + D(attention(n1(x)))    y = a + D(mlp(n2(a)))
//   post-norm   a = n1(x + D(attention(x)))    y = n2(a + D(mlp(a)))
//
// mlp(z) = f(z W_1^T + b_1) W_2^T + b_2. A gated MLP has f(z W_g^T + b_g) * (z W_1^T + b_1) instead
// of f(z W_1^T + b_1) (arXiv:2002.05202).
#include <cstdint>

#include "cpu/elementwise/gradients.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "nn/attention/attention_parameters.h"
#include "nn/dropout_sites.h"
#include "nn/graph/kinds.h"
#include "nn/transformer/transformer_block.h"

namespace multihead::nn {
namespace {

const BlockCall& block_call(const LayerCall& call) { return static_cast<const BlockCall&>(call); }

// (batch, tokens, embed_dim)
Dims shape_of(const BlockCall& call) {
  return {call.batch, call.tokens, call.block.config().attention.embed_dim};
}

// ---- The attention module, as one operation. ----

Status module_forward(const ForwardStep& step) {
  const BlockCall& call = block_call(step.call);
  const MultiHeadAttention& module = call.block.attention();
  const ConstTensor x(step.frame.data(step.op->in), shape_of(call));
  const Tensor out(step.frame.data(step.op->out), x.shape);
  MULTIHEAD_TRY(call.module_cache == nullptr
                    ? module.forward({.query = x}, call.options,
                                     {.out = out, .activations = call.activations}, call.trace,
                                     step.context)
                    : module.step(x, call.options, {.out = out}, *call.module_cache, call.trace,
                                  step.context));
  // The call's outputs are written from here on.
  if (call.attention_out.given()) {
    const Dims one{1, 1, call.rows(), x.shape[2]};
    engine::copy_rows({out.data, one}, {call.attention_out.data, one}, step.context);
  }
  return {};
}

Status module_backward(const BackwardStep& step) {
  const BlockCall& call = block_call(step.call);
  const MultiHeadAttention& module = call.block.attention();
  const Dims shape = shape_of(call);
  float* const d_in = step.gradients.data(step.op->in);
  float* const d_query = step.adds ? call.d_attended : d_in;
  MULTIHEAD_TRY(module.backward(
      {.query = {step.values.data(step.op->in), shape}}, call.options,
      {step.gradients.data(step.op->out), shape}, call.activations,
      {.d_query = {d_query, shape}, .weights = gradients_of(module.weights(), *call.to)},
      step.context));
  if (step.adds) engine::add(d_in, d_query, d_in, shape.elements(), step.context);
  return {};
}

constexpr Kind kModule{module_forward, module_backward, nullptr, true};

// ---- out = in + dropout(in2) ----

// Computes y = a + dropout(x), where a may be null. Returns false without dropout.
bool drop(const LayerCall& layer_call, uint32_t site, const float* a, const float* x, float* y,
          Context& context) {
  const BlockCall& call = block_call(layer_call);
  if (!call.options.training) return false;
  const TransformerBlockConfig& config = call.block.config();
  const cpu::DropRows rows{.a = a,
                           .x = x,
                           .y = y,
                           .width = config.attention.embed_dim,
                           .dropout = {config.residual_dropout, call.options.dropout_seed, site}};
  engine::over_rows(rows, call.rows(), rows.width, cpu::drop_rows, context);
  return true;
}

Status drop_forward(const ForwardStep& step) {
  const Operation& op = *step.op;
  const bool done = drop(step.call, op.dropout_site, step.frame.data(op.in),
                         step.frame.data(op.in2), step.frame.data(op.out), step.context);
  return done ? Status() : add_forward(step);
}

Status drop_backward(const BackwardStep& step) {
  const Operation& op = *step.op;
  const bool done = drop(step.call, op.dropout_site, nullptr, step.gradients.data(op.out),
                         step.gradients.data(op.in2), step.context);
  return done ? Status() : add_backward(step);
}

constexpr Kind kDropAndAdd{drop_forward, drop_backward};

Graph list_of(const TransformerBlockConfig& config) {
  Graph graph;
  graph.norm = norm_kind(config);
  graph.activation = config.activation;
  const int64_t width = config.attention.embed_dim;
  const bool norms = config.norm != Norm::kNone;
  const bool before = norms && config.norm_first, after = norms && !config.norm_first;
  const auto write = [&](Operation op, const Value& value) {
    op.out = graph.add(value);
    graph.operations.push_back(op);
    return op.out;
  };
  const auto norm = [&](ValueId in, NormParameters LayerParameters::*parameters, bool in_place) {
    return write({.kind = &kNorm, .in = in, .norm = parameters},
                 {.width = width, .replaces = in_place ? in : kNoValue});
  };
  const auto project = [&](ValueId in, Projection LayerParameters::*projection, int64_t outputs) {
    return write({.kind = &kProjectF32, .in = in, .projection = projection}, {.width = outputs});
  };
  const auto add = [&](ValueId to, ValueId branch, DropoutSite site) {
    return write({.kind = config.residual_dropout == 0.0F ? &kAdd : &kDropAndAdd,
                  .in = to,
                  .in2 = branch,
                  .dropout_site = site},
                 {.width = width, .replaces = to});
  };
  ValueId x = graph.input = graph.add({.width = width});
  ValueId in = before ? norm(x, &LayerParameters::attention_norm, false) : x;
  x = add(x, write({.kind = &kModule, .in = in}, {.width = width}), kAttentionBranch);
  if (after) x = norm(x, &LayerParameters::attention_norm, true);
  if (config.mlp_dim > 0) {
    in = before ? norm(x, &LayerParameters::mlp_norm, false) : x;
    // backward() begins with the last of these: the order decides over bits of sums.
    const ValueId gate =
        config.gated ? project(in, &LayerParameters::gate, config.mlp_dim) : kNoValue;
    const ValueId up = project(in, &LayerParameters::up, config.mlp_dim);
    const ValueId first = config.gated ? gate : up;
    const ValueId hidden =
        write({.kind = &kActivate, .in = first, .in2 = config.gated ? up : kNoValue},
              {.width = config.mlp_dim, .replaces = first});
    x = add(x, project(hidden, &LayerParameters::down, width), kMlpBranch);
    if (after) x = norm(x, &LayerParameters::mlp_norm, true);
  }
  graph.output = x;
  plan(graph);
  return graph;
}

// A view of parameters, which lists of operations share with places that are written.
float* numbers(const ConstTensor& view) { return const_cast<float*>(view.data); }

Projection projection_of(const ConstTensor& weight, const ConstTensor& bias) {
  if (!weight.given()) return {};
  return {{weight.data, WeightType::kF32, weight.shape[0], weight.shape[1]},
          {numbers(bias), bias.given() ? bias.shape[0] : 0}};
}

}  // namespace

NormKind norm_kind(const TransformerBlockConfig& config) {
  return {.rms = config.norm == Norm::kRmsNorm, .eps = config.norm_eps};
}

NormParameters norm_parameters(const TransformerBlockConfig& config, const ConstTensor& weight,
                               const ConstTensor& bias) {
  const int64_t width = config.attention.embed_dim;
  return {{numbers(weight), weight.given() ? width : 0},
          {numbers(bias), bias.given() ? width : 0},
          config.norm != Norm::kNone && !config.norm_affine};
}

BlockList::BlockList(const TransformerBlockConfig& config, const BlockViews& views)
    : graph(list_of(config)) {
  parameters.attention_norm = norm_parameters(config, views.norm1_weight, views.norm1_bias);
  parameters.mlp_norm = norm_parameters(config, views.norm2_weight, views.norm2_bias);
  parameters.up = projection_of(views.linear1_weight, views.linear1_bias);
  parameters.gate = projection_of(views.gate_weight, views.gate_bias);
  parameters.down = projection_of(views.linear2_weight, views.linear2_bias);
}

BlockCall::BlockCall(const TransformerBlock& called, const MultiHeadAttentionOptions& call_options,
                     int64_t batch_, int64_t tokens_)
    : block(called), list(TransformerBlock::Internals::list_of(called)), options(call_options) {
  parameters = &list.parameters;
  batch = batch_;
  tokens = tokens_;
  attention = &options.attention;
}

void BlockGradients::lay_out(const BlockCall& call, float* d, rules::Arena& take) {
  const TransformerBlockConfig& config = call.block.config();
  const bool normed = config.norm != Norm::kNone && config.norm_first;
  frame.lay_out_gradients(call.list.graph, call, d, take);
  take(d_attended, normed ? 0 : saturated_elements(shape_of(call)));
}

Status backward(BlockCall& call, const Frame& values, const BlockGradients& d, float* gradients,
                Context& context) {
  const GradientBlock to{TransformerBlock::Internals::values_of(call.block), gradients};
  LayerParameters of_parameters = call.list.parameters;
  const auto move = [&](Vector& vector) {
    if (vector.given()) vector.data = to.of(vector.view()).data;
  };
  for (const auto member : {&LayerParameters::attention_norm, &LayerParameters::mlp_norm}) {
    move((of_parameters.*member).weight);
    move((of_parameters.*member).bias);
  }
  for (const auto member : {&LayerParameters::gate, &LayerParameters::up, &LayerParameters::down}) {
    WeightMatrix& matrix = (of_parameters.*member).weight;
    const ConstTensor view(static_cast<const float*>(matrix.data), {matrix.rows, matrix.columns});
    matrix.data = to.of(view).data;
    move((of_parameters.*member).bias);
  }
  call.gradients = &of_parameters;
  call.to = &to;
  call.d_attended = d.d_attended;
  return backward(call.list.graph, values, d.frame, call, nullptr, context);
}

}  // namespace multihead::nn
