// TransformerBlock::backward(): backpropagates from the block's output to its input. `d` holds the
// gradient of the residual stream. With D for dropout, and f'(z) g for the backward of f at z,
// which turns the gradient g of f(z) into the gradient of z:
//
//   pre-norm    a = x + D(attention(n1(x)))    y = a + D(mlp(n2(a)))
//               da = dy + n2'(a) mlp'(n2(a)) D dy
//               dx = da + n1'(x) attention'(n1(x)) D da
//   post-norm   a = n1(u), u = x + D(attention(x))    y = n2(w), w = a + D(mlp(a))
//               dw = n2'(w) dy, da = dw + mlp'(a) D dw
//               du = n1'(u) da, dx = du + attention'(x) D du
//
// mlp(z) = f(z W_1^T + b_1) W_2^T + b_2. A gated MLP has f(z W_g^T + b_g) * (z W_1^T + b_1) instead
// of f(z W_1^T + b_1) (arXiv:2002.05202).
#include <cstdint>
#include <span>

#include "cpu/elementwise/gradients.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/scratch.h"
#include "nn/attention/attention_parameters.h"
#include "nn/call_memory.h"
#include "nn/dropout_sites.h"
#include "nn/parameters.h"
#include "nn/transformer/transformer_block.h"

namespace multihead {

Status TransformerBlock::Internals::back(const TransformerBlock& block, const ConstTensor& x,
                                         const MultiHeadAttentionOptions& options,
                                         const nn::BlockArrays& arrays,
                                         const nn::BlockBackwardArrays& back, const Tensor& d,
                                         float* gradients, Context& context) {
  const TransformerBlockConfig& config = block.config_;
  const Weights& weights = block.weights_;
  const int64_t width = config.attention.embed_dim, inner_width = config.mlp_dim;
  const int64_t rows = x.shape[0] * x.shape[1], floats = rows * width;
  const Dims flat{rows, width}, wide{rows, inner_width};
  const bool norms = config.norm != Norm::kNone;
  const bool before = norms && config.norm_first, after = norms && !config.norm_first;
  const nn::GradientBlock to{block.memory_->parameters.values(), gradients};
  const auto norm_back = [&](const float* from, bool first, const float* d_y, bool adds) {
    return nn::normalize_back(config, from, first ? weights.norm1_weight : weights.norm2_weight,
                              first ? weights.norm1_bias : weights.norm2_bias, d_y, {d.data, flat},
                              adds, to, context);
  };
  // Returns the gradient of a branch before its dropout.
  const auto undropped = [&](nn::DropoutSite site) -> const float* {
    if (!options.training || config.residual_dropout == 0.0F) return d.data;
    const cpu::DropRows call{.a = nullptr,
                             .x = d.data,
                             .y = back.d_branch,
                             .width = width,
                             .dropout = {config.residual_dropout, options.dropout_seed, site}};
    engine::over_rows(call, rows, width, cpu::drop_rows, context);
    return back.d_branch;
  };

  Status status;
  if (inner_width > 0) {
    if (after) {
      MULTIHEAD_TRY(norm_back(arrays.sum, false, d.data, false));
    }
    const float* const mlp_in = norms ? arrays.mlp_in : arrays.residual;
    const Tensor d_hidden(back.d_hidden, wide), d_gate(back.d_gate, wide);
    MULTIHEAD_TRY(engine::linear_backward({.x = {arrays.hidden, wide},
                                           .weight = weights.linear2_weight,
                                           .d_y = {undropped(nn::kMlpBranch), flat},
                                           .d_x = d_hidden,
                                           .d_weight = to.of(weights.linear2_weight),
                                           .d_bias = to.of(weights.linear2_bias).data,
                                           .precision = options.attention.precision},
                                          context));
    const cpu::ActivationBackward activation{.gate = config.gated ? arrays.gate : arrays.inner,
                                             .x = config.gated ? arrays.inner : nullptr,
                                             .d_y = back.d_hidden,
                                             .d_gate = config.gated ? back.d_gate : back.d_hidden,
                                             .d_x = config.gated ? back.d_hidden : nullptr,
                                             .count = rows * inner_width,
                                             .activation = config.activation};
    engine::over_rows(activation, activation.count, 1, cpu::activation_backward_range, context);
    // Without a norm before the MLP, its input is also the residual, so its gradient is added to
    // `d`.
    const Tensor d_in(before ? back.d_normed : d.data, flat);
    MULTIHEAD_TRY(engine::linear_backward({.x = {mlp_in, flat},
                                           .weight = weights.linear1_weight,
                                           .d_y = d_hidden,
                                           .d_x = d_in,
                                           .adds_to_d_x = !before,
                                           .d_weight = to.of(weights.linear1_weight),
                                           .d_bias = to.of(weights.linear1_bias).data,
                                           .precision = options.attention.precision},
                                          context));
    if (config.gated)
      MULTIHEAD_TRY(engine::linear_backward({.x = {mlp_in, flat},
                                             .weight = weights.gate_weight,
                                             .d_y = d_gate,
                                             .d_x = d_in,
                                             .adds_to_d_x = true,
                                             .d_weight = to.of(weights.gate_weight),
                                             .d_bias = to.of(weights.gate_bias).data,
                                             .precision = options.attention.precision},
                                            context));
    if (before) MULTIHEAD_TRY(norm_back(arrays.residual, false, back.d_normed, true));
  }

  if (after) {
    MULTIHEAD_TRY(norm_back(arrays.residual, true, d.data, false));
  }
  const ConstTensor input(before ? arrays.normed : x.data, x.shape);
  const ConstTensor d_attended(undropped(nn::kAttentionBranch), x.shape);
  MULTIHEAD_TRY(block.attention_.backward({.query = input}, options, d_attended, arrays.attention,
                                          {.d_query = {back.d_normed, x.shape},
                                           .weights = gradients_of(block.attention_.weights(), to)},
                                          context));
  if (before) return norm_back(x.data, true, back.d_normed, true);
  engine::add(d.data, back.d_normed, d.data, floats, context);
  return {};
}

Status TransformerBlock::backward(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                                  const ConstTensor& d_out,
                                  const TransformerBlockActivations& activations, const Tensor& d_x,
                                  std::span<float> gradients, Context& context) const {
  return engine::memory_guard([&]() -> Status {
    if (memory_ == nullptr) return engine::option_error(Name::kBlock, Message::kLoaded);
    constexpr auto kAxes = engine::Axes::kBatchTokens;
    MULTIHEAD_TRY(engine::validate_rank(Name::kX, kAxes, x, 3));
    const Dims shape{x.shape[0], x.shape[1], config_.attention.embed_dim};
    MULTIHEAD_TRY(nn::validate_rows(Name::kX, kAxes, x, shape));
    MULTIHEAD_TRY(nn::validate_rows(Name::kDOut, kAxes, d_out, shape));
    if (d_x.given()) MULTIHEAD_TRY(nn::validate_rows(Name::kDX, kAxes, d_x, shape));
    MULTIHEAD_TRY(engine::renamed(nn::validate_block(*this, gradients.size()), Name::kBlock,
                                  Name::kGradients));
    const nn::KeptBlock* const kept = nn::ActivationsAccess::find(activations);
    if (kept == nullptr || !kept->belong_to(memory_->version, shape)) {
      return engine::option_error(Name::kActivations, Message::kActivationsOfCall);
    }
    const int64_t rows = shape[0] * shape[1];
    float* own = nullptr;  // if d_x is not requested
    nn::BlockBackwardArrays arrays;
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).transformer(), [&](rules::Arena& take) {
      arrays.lay_out(config_, rows, take);
      take(own, d_x.given() ? 0 : nn::saturated_elements(shape));
    }));
    const Tensor d = d_x.given() ? d_x : Tensor(own, shape);
    if (d.data != d_out.data) {
      const Dims one_head{1, 1, rows, shape[2]};
      engine::copy_rows({d_out.data, one_head}, {d.data, one_head}, context);
    }
    return Internals::back(*this, x, options, kept->arrays, arrays, d, gradients.data(), context);
  });
}

}  // namespace multihead
