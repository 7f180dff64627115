#include "nn/transformer/transformer_block.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cpu/elementwise/gradients.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "multihead/linear.h"
#include "nn/attention/attention_parameters.h"
#include "nn/call_memory.h"
#include "nn/dropout_sites.h"

namespace multihead {
namespace {

using engine::validate_exact;

// Name prefixes for the parts of a block.
struct BlockNames {
  const char *norm1, *norm2, *attention, *linear1, *linear2, *gate;
  nn::AttentionNames attention_names;
};

constexpr BlockNames kTorchNames{"norm1",       "norm2", "self_attn.", "linear1", "linear2",
                                 "linear_gate", {}};
constexpr BlockNames kGpt2Names{
    "ln_1",
    "ln_2",
    "attn.",
    "mlp.c_fc",
    "mlp.c_proj",
    "mlp.c_gate",
    {"c_attn.weight", "c_attn.bias", "c_proj.weight", "c_proj.bias", nn::DictLayout::kTransposed}};

const BlockNames& names_of(ParameterNames names) {
  return names == ParameterNames::kGpt2 ? kGpt2Names : kTorchNames;
}

}  // namespace

namespace nn {

void list_norm(const std::string& name, const TransformerBlockConfig& config, ConstTensor& weight,
               ConstTensor& bias, ParameterList& list) {
  if (config.norm == Norm::kNone || !config.norm_affine) return;
  const int64_t width = config.attention.embed_dim;
  list.add(name + ".weight", {width}, ParameterRole::kGain, weight);
  if (config.norm == Norm::kLayerNorm) {
    list.add(name + ".bias", {width}, ParameterRole::kBias, bias);
  }
}

Status normalize(Norm norm, const ConstTensor& x, const ConstTensor& weight,
                 const ConstTensor& bias, float eps, const Tensor& y, Context& context) {
  return norm == Norm::kRmsNorm ? rms_norm(x, weight, eps, y, context)
                                : layer_norm(x, weight, bias, eps, y, context);
}

Status normalize_back(const TransformerBlockConfig& config, const float* x,
                      const ConstTensor& weight, const ConstTensor& bias, const float* d_y,
                      const Tensor& d_x, bool adds_to_d_x, const GradientBlock& block,
                      Context& context) {
  return engine::norm_backward({.x = x,
                                .weight = weight.data,
                                .d_y = d_y,
                                .d_x = d_x.data,
                                .adds_to_d_x = adds_to_d_x,
                                .d_weight = block.of(weight).data,
                                .d_bias = block.of(bias).data,
                                .rows = d_x.shape[0],
                                .width = d_x.shape[1],
                                .eps = config.norm_eps,
                                .centered = config.norm == Norm::kLayerNorm},
                               context);
}

Status validate_rows(Name name, Axes axes, const ConstTensor& tensor, const Dims& shape) {
  MULTIHEAD_TRY(validate_exact(name, axes, tensor, shape));
  if (tensor.strides == contiguous_strides(shape)) return {};
  return shape_error(name, Message::kContiguous, tensor.strides);
}

Status validate_probability(Name name, float probability) {
  if (probability >= 0.0F && probability < 1.0F) return {};
  return real_error(name, Message::kProbability, probability);
}

Status validate_names(ParameterNames names, const MultiHeadAttentionConfig& config) {
  MULTIHEAD_TRY(engine::validate_enumerator(Name::kNames, names, ParameterNames::kGpt2));
  if (names != ParameterNames::kGpt2 || config.kv_latent_dim == 0) return {};
  return option_error(Name::kNames, Message::kNamesOfLatent);
}

}  // namespace nn

Status TransformerBlock::create(const TransformerBlockConfig& config, TransformerBlock& block) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(
        engine::validate_enumerator(Name::kActivation, config.activation, Activation::kSilu));
    MULTIHEAD_TRY(engine::validate_enumerator(Name::kNorm, config.norm, Norm::kRmsNorm));
    TransformerBlock made;
    made.config_ = config;
    MULTIHEAD_TRY(MultiHeadAttention::create(config.attention, made.attention_));
    const MultiHeadAttentionConfig& attention = made.attention_.config();
    const int64_t width = attention.embed_dim;
    for (const auto& [name, value] : {std::pair{Name::kOutDim, attention.out_dim},
                                      {Name::kKdim, attention.kdim},
                                      {Name::kVdim, attention.vdim}}) {
      if (value == width) continue;
      return option_error(name, Message::kWidthInBlock, width, value);
    }
    if (!attention.batch_first) return option_error(Name::kBatchFirst, Message::kBatchFirstInBlock);
    if (config.mlp_dim < 0 || config.mlp_dim > 1 << 24) {
      return option_error(Name::kMlpDim, Message::kMlpDim, config.mlp_dim);
    }
    if (!(config.norm_eps >= 0.0F) || std::isinf(config.norm_eps)) {
      return real_error(Name::kNormEps, Message::kFiniteNotNegative, config.norm_eps);
    }
    MULTIHEAD_TRY(nn::validate_probability(Name::kResidualDropout, config.residual_dropout));
    made.config_.attention = attention;
    block = std::move(made);
    return {};
  });
}

void TransformerBlock::Internals::list(TransformerBlock& block, const std::string& prefix,
                                       ParameterNames names, MultiHeadAttentionWeights& attention,
                                       nn::ParameterList& list) {
  const TransformerBlockConfig& c = block.config_;
  const BlockNames& n = names_of(names);
  const int64_t width = c.attention.embed_dim;
  Weights& w = block.weights_;
  nn::list_norm(prefix + n.norm1, c, w.norm1_weight, w.norm1_bias, list);
  nn::list_attention(c.attention, prefix + n.attention, n.attention_names, attention, list);
  if (c.mlp_dim == 0) return;
  nn::list_norm(prefix + n.norm2, c, w.norm2_weight, w.norm2_bias, list);
  const auto list_linear = [&](const char* name, int64_t out, int64_t in, ConstTensor& weight,
                               ConstTensor& bias, nn::ParameterRole role) {
    list.add_linear(prefix + name, out, in, role, n.attention_names.matrices, weight,
                    c.mlp_bias ? &bias : nullptr);
  };
  using enum nn::ParameterRole;
  list_linear(n.linear1, c.mlp_dim, width, w.linear1_weight, w.linear1_bias, kWeight);
  if (c.gated) list_linear(n.gate, c.mlp_dim, width, w.gate_weight, w.gate_bias, kWeight);
  list_linear(n.linear2, width, c.mlp_dim, w.linear2_weight, w.linear2_bias, kResidualWeight);
}

Status TransformerBlock::load_state_dict(const StateDict& dict, ParameterNames names) {
  return engine::memory_guard([&] { return Internals::load(*this, dict, names, {}); });
}

Status TransformerBlock::Internals::load(TransformerBlock& block, const StateDict& dict,
                                         ParameterNames names, const nn::Loading& loading) {
  if (block.config_.attention.embed_dim == 0) return option_error(Name::kBlock, Message::kCreated);
  MULTIHEAD_TRY(nn::validate_names(names, block.config_.attention));
  // Loads a copy, so that an error leaves this block unchanged.
  TransformerBlock loaded = block;
  MultiHeadAttentionWeights attention;
  nn::ParameterList list(loading.team);
  Internals::list(loaded, "", names, attention, list);
  const bool gpt2 = names == ParameterNames::kGpt2;
  const auto ignored = [&](std::string_view name) { return gpt2 && nn::is_gpt2_buffer(name); };
  auto memory = std::make_shared<Memory>();
  MULTIHEAD_TRY(memory->parameters.load(list, dict, loading, ignored));
  MULTIHEAD_TRY(MultiHeadAttention::Internals::take_weights(
      loaded.attention_, attention, std::make_shared<MultiHeadAttention::Memory>(), loading));
  if (loading.same_values && block.memory_ != nullptr) memory->version = block.memory_->version;
  loaded.memory_ = std::move(memory);
  block = std::move(loaded);
  return {};
}

Status TransformerBlock::forward(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                                 const TransformerBlockOutputs& outputs, Trace* trace,
                                 Context& context) const {
  return engine::memory_guard(
      [&] { return Internals::call(*this, x, options, outputs, nullptr, trace, context); });
}

Status TransformerBlock::step(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                              const TransformerBlockOutputs& outputs,
                              MultiHeadAttentionCache& cache, Trace* trace,
                              Context& context) const {
  const int64_t before = cache.length();
  Status status = engine::memory_guard(
      [&] { return Internals::call(*this, x, options, outputs, &cache, trace, context); });
  // Remove the appended tokens: the attention succeeded, but a later step failed.
  if (!status.ok() && cache.length() != before) {
    MULTIHEAD_TRY(cache.truncate(before));
  }
  return status;
}

Status TransformerBlock::Internals::call(const TransformerBlock& block, const ConstTensor& x,
                                         const MultiHeadAttentionOptions& options,
                                         const TransformerBlockOutputs& outputs,
                                         MultiHeadAttentionCache* cache, Trace* trace,
                                         Context& context) {
  if (block.memory_ == nullptr) return option_error(Name::kBlock, Message::kLoaded);
  constexpr Axes kAxes = Axes::kBatchTokens;
  MULTIHEAD_TRY(engine::validate_rank(Name::kX, kAxes, x, 3));
  const TransformerBlockConfig& config = block.config_;
  const Dims shape{x.shape[0], x.shape[1], config.attention.embed_dim};
  MULTIHEAD_TRY(nn::validate_rows(Name::kX, kAxes, x, shape));
  MULTIHEAD_TRY(nn::validate_rows(Name::kOut, kAxes, outputs.out, shape));
  if (outputs.attention_out.given()) {
    MULTIHEAD_TRY(nn::validate_rows(Name::kAttentionOut, kAxes, outputs.attention_out, shape));
  }
  const auto lay_out = [&](nn::BlockArrays& arrays, bool keeps) {
    return [&, keeps](rules::Arena& take) {
      arrays.lay_out(config, shape[0] * shape[1], keeps, take);
    };
  };
  if (outputs.activations == nullptr) {
    nn::BlockArrays arrays;
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).transformer(), lay_out(arrays, false)));
    return run(block, x, options, outputs, cache, trace, arrays, context);
  }
  if (cache != nullptr) return option_error(Name::kActivations, Message::kNoneInStep);
  if (x.data == outputs.out.data && shape.elements() != 0) {
    return option_error(Name::kOut, Message::kNotInPlace);
  }
  nn::KeptBlock* kept = nullptr;
  MULTIHEAD_TRY(nn::ActivationsAccess::make(*outputs.activations, kept));
  MULTIHEAD_TRY(kept->begin(block.memory_->version, shape, lay_out(kept->arrays, true)));
  kept->arrays.attention = &kept->attention;
  MULTIHEAD_TRY(run(block, x, options, outputs, nullptr, trace, kept->arrays, context));
  kept->end();
  return {};
}

void nn::BlockArrays::lay_out(const TransformerBlockConfig& config, int64_t rows, bool keeps,
                              rules::Arena& take) {
  const uint64_t outer = nn::saturated_elements({rows, config.attention.embed_dim});
  const uint64_t wide = nn::saturated_elements({rows, config.mlp_dim});
  const bool norms = config.norm != Norm::kNone;
  take(normed, outer);
  take(branch, outer);
  take(inner, wide);
  take(gate, config.gated ? wide : 0);
  mlp_in = config.norm_first ? normed : nullptr;
  hidden = inner;
  if (!keeps) return;
  take(residual, outer);
  if (norms) take(mlp_in, outer);
  take(hidden, wide);
  if (norms && !config.norm_first) take(sum, outer);
}

void nn::BlockBackwardArrays::lay_out(const TransformerBlockConfig& config, int64_t rows,
                                      rules::Arena& take) {
  const uint64_t outer = nn::saturated_elements({rows, config.attention.embed_dim});
  const uint64_t wide = nn::saturated_elements({rows, config.mlp_dim});
  take(d_branch, outer);
  take(d_normed, outer);
  take(d_hidden, wide);
  take(d_gate, config.gated ? wide : 0);
}

Status TransformerBlock::Internals::run(const TransformerBlock& block, const ConstTensor& x,
                                        const MultiHeadAttentionOptions& options,
                                        const TransformerBlockOutputs& outputs,
                                        MultiHeadAttentionCache* cache, Trace* trace,
                                        const nn::BlockArrays& arrays, Context& context) {
  const TransformerBlockConfig& config = block.config_;
  const Weights& weights = block.weights_;
  const int64_t width = config.attention.embed_dim, inner_width = config.mlp_dim;
  const int64_t rows = x.shape[0] * x.shape[1], floats = rows * width;
  const Dims flat{rows, width};
  const bool norms = config.norm != Norm::kNone;
  const bool before = norms && config.norm_first, after = norms && !config.norm_first;
  const auto normalize = [&](const float* from, bool first, float* to) {
    return nn::normalize(
        config.norm, {from, flat}, first ? weights.norm1_weight : weights.norm2_weight,
        first ? weights.norm1_bias : weights.norm2_bias, config.norm_eps, {to, flat}, context);
  };
  const auto add = [&](const float* to, nn::DropoutSite site, float* sum) {
    if (!options.training || config.residual_dropout == 0.0F) {
      return engine::add(to, arrays.branch, sum, floats, context);
    }
    const cpu::DropRows call{.a = to,
                             .x = arrays.branch,
                             .y = sum,
                             .width = width,
                             .dropout = {config.residual_dropout, options.dropout_seed, site}};
    engine::over_rows(call, rows, width, cpu::drop_rows, context);
  };
  const float* attended_to = x.data;
  if (before) {
    MULTIHEAD_TRY(normalize(x.data, true, arrays.normed));
    attended_to = arrays.normed;
  }
  const ConstTensor input(attended_to, x.shape);
  const Tensor attended(arrays.branch, x.shape);
  MULTIHEAD_TRY(
      cache == nullptr
          ? block.attention_.forward({.query = input}, options,
                                     {.out = attended, .activations = arrays.attention}, trace,
                                     context)
          : block.attention_.step(input, options, {.out = attended}, *cache, trace, context));
  // Outputs are written from here on. `x` may be `out`, so it is not read after the sum.
  if (outputs.attention_out.given()) {
    const Dims one_head{1, 1, rows, width};
    engine::copy_rows(ConstTensor(arrays.branch, one_head), {outputs.attention_out.data, one_head},
                      context);
  }
  float* const out = outputs.out.data;
  float* const residual = arrays.residual != nullptr && inner_width > 0 ? arrays.residual : out;
  float* const before_norm1 = after && arrays.residual != nullptr ? arrays.residual : residual;
  add(x.data, nn::kAttentionBranch, before_norm1);
  const float* mlp_in = residual;
  if (after) {
    float* const to = inner_width > 0 && arrays.mlp_in != nullptr ? arrays.mlp_in : out;
    MULTIHEAD_TRY(normalize(before_norm1, true, to));
    mlp_in = to;
  }
  if (inner_width == 0) return {};

  const float* added_to = mlp_in;
  if (before) {
    MULTIHEAD_TRY(normalize(residual, false, arrays.mlp_in));
    added_to = residual;
    mlp_in = arrays.mlp_in;
  }
  const Dims wide{rows, inner_width};
  const ConstTensor from(mlp_in, flat);
  const Precision precision = options.attention.precision;
  const Tensor inner(arrays.inner, wide), gate(arrays.gate, wide), hidden(arrays.hidden, wide);
  MULTIHEAD_TRY(
      linear(from, weights.linear1_weight, weights.linear1_bias, inner, context, precision));
  if (config.gated) {
    MULTIHEAD_TRY(linear(from, weights.gate_weight, weights.gate_bias, gate, context, precision));
    MULTIHEAD_TRY(activate_gated(gate, inner, config.activation, hidden, context));
  } else {
    MULTIHEAD_TRY(activate(inner, config.activation, hidden, context));
  }
  MULTIHEAD_TRY(linear(hidden, weights.linear2_weight, weights.linear2_bias, {arrays.branch, flat},
                       context, precision));
  float* const sum = after && arrays.sum != nullptr ? arrays.sum : out;
  add(added_to, nn::kMlpBranch, sum);
  return after ? normalize(sum, false, out) : Status();
}

}  // namespace multihead

template class multihead::Activations<multihead::nn::KeptBlock>;
