#include "nn/transformer_block.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/enumerators.h"
#include "engine/guard.h"
#include "engine/validate.h"
#include "nn/module_parameters.h"

namespace multihead {
namespace {

using engine::Axes;
using engine::Message;
using engine::Name;
using engine::option_error;
using engine::real_error;
using engine::shape_error;
using engine::validate_exact;

// What each naming calls the parts of a block.
struct BlockNames {
  const char *norm1, *norm2, *attention, *linear1, *linear2, *gate;
  nn::AttentionNames of_attention;
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
    {"c_attn.weight", "c_attn.bias", "c_proj", nn::Parameters::Stored::kTransposed}};

const BlockNames& names_of(ParameterNames names) {
  return names == ParameterNames::kGpt2 ? kGpt2Names : kTorchNames;
}

void add_matrix(nn::Parameters& parameters, const std::string& name, int64_t out, int64_t in,
                nn::Parameters::Stored stored) {
  const bool turned = stored == nn::Parameters::Stored::kTransposed;
  parameters.add(name, turned ? Dims{in, out} : Dims{out, in}, stored);
}

void add(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

namespace nn {

void add_norm(Parameters& parameters, const std::string& name, Norm norm, int64_t width) {
  if (norm == Norm::kNone) return;
  parameters.add(name + ".weight", {width});
  if (norm == Norm::kLayerNorm) parameters.add(name + ".bias", {width});
}

Status normalise(Norm norm, const ConstTensor& x, const ConstTensor& weight,
                 const ConstTensor& bias, float epsilon, const Tensor& y, Context& context) {
  return norm == Norm::kRmsNorm ? rms_norm(x, weight, epsilon, y, context)
                                : layer_norm(x, weight, bias, epsilon, y, context);
}

bool is_gpt2_buffer(std::string_view name) {
  // Not c_attn.bias, which is a parameter.
  const auto is = [&](std::string_view buffer) {
    if (!name.ends_with(buffer)) return false;
    const std::string_view before = name.substr(0, name.size() - buffer.size());
    return before.empty() || before.ends_with('.');
  };
  return is("attn.bias") || is("attn.masked_bias");
}

Status validate_names(ParameterNames names, const MultiHeadAttentionConfig& config) {
  if (Status status = engine::validate_enumerator(Name::kNames, names, ParameterNames::kGpt2);
      !status.ok()) {
    return status;
  }
  if (names != ParameterNames::kGpt2 || config.kv_latent_dim == 0) return {};
  return option_error(Name::kNames, Message::kNamesOfLatent);
}

}  // namespace nn

Status TransformerBlock::create(const TransformerBlockConfig& config, TransformerBlock& block) {
  return engine::memory_guard([&] { return create_or_throw(config, block); });
}

Status TransformerBlock::create_or_throw(const TransformerBlockConfig& config,
                                         TransformerBlock& block) {
  for (const Status& status :
       {engine::validate_enumerator(Name::kActivation, config.activation, Activation::kSilu),
        engine::validate_enumerator(Name::kNorm, config.norm, Norm::kRmsNorm)}) {
    if (!status.ok()) return status;
  }
  TransformerBlock made;
  made.config_ = config;
  if (Status status = MultiHeadAttention::create(config.attention, made.attention_); !status.ok()) {
    return status;
  }
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
  made.config_.attention = attention;
  block = std::move(made);
  return {};
}

void TransformerBlock::add_parameters(nn::Parameters& parameters, const std::string& prefix,
                                      ParameterNames names) const {
  const BlockNames& n = names_of(names);
  const int64_t width = config_.attention.embed_dim;
  nn::add_norm(parameters, prefix + n.norm1, config_.norm, width);
  nn::add_attention(config_.attention, prefix + n.attention, n.of_attention, parameters);
  if (config_.mlp_dim == 0) return;
  nn::add_norm(parameters, prefix + n.norm2, config_.norm, width);
  const auto add_linear = [&](const char* name, int64_t out, int64_t in) {
    add_matrix(parameters, prefix + name + ".weight", out, in, n.of_attention.matrices);
    if (config_.mlp_bias) parameters.add(prefix + name + ".bias", {out});
  };
  add_linear(n.linear1, config_.mlp_dim, width);
  if (config_.gated) add_linear(n.gate, config_.mlp_dim, width);
  add_linear(n.linear2, width, config_.mlp_dim);
}

Status TransformerBlock::take_weights(const nn::Parameters& parameters, const std::string& prefix,
                                      ParameterNames names) {
  const BlockNames& n = names_of(names);
  const auto find = [&](const std::string& name) { return parameters.find(prefix + name); };
  const auto weight = [&](const char* name) { return find(std::string(name) + ".weight"); };
  const auto bias = [&](const char* name) { return find(std::string(name) + ".bias"); };
  const Weights weights = {.norm1_weight = weight(n.norm1),
                           .norm1_bias = bias(n.norm1),
                           .norm2_weight = weight(n.norm2),
                           .norm2_bias = bias(n.norm2),
                           .linear1_weight = weight(n.linear1),
                           .linear1_bias = bias(n.linear1),
                           .gate_weight = weight(n.gate),
                           .gate_bias = bias(n.gate),
                           .linear2_weight = weight(n.linear2),
                           .linear2_bias = bias(n.linear2)};
  Status status = attention_.use_weights(
      nn::attention_weights(config_.attention, prefix + n.attention, n.of_attention, parameters));
  // Both or none.
  if (status.ok()) weights_ = weights;
  return status;
}

Status TransformerBlock::load_state_dict(const StateDict& dict, ParameterNames names) {
  return engine::memory_guard([&] { return load_or_throw(dict, names); });
}

Status TransformerBlock::load_or_throw(const StateDict& dict, ParameterNames names) {
  if (config_.attention.embed_dim == 0) {
    return option_error(Name::kBlock, Message::kCreated);
  }
  if (Status status = nn::validate_names(names, config_.attention); !status.ok()) return status;
  auto parameters = std::make_shared<nn::Parameters>();
  add_parameters(*parameters, "", names);
  const bool gpt2 = names == ParameterNames::kGpt2;
  const auto ignored = [&](std::string_view name) { return gpt2 && nn::is_gpt2_buffer(name); };
  if (Status status = parameters->load(dict, ignored); !status.ok()) return status;
  if (Status status = take_weights(*parameters, "", names); !status.ok()) return status;
  owned_ = std::move(parameters);
  return {};
}

Status TransformerBlock::state_dict(StateDict& dict) const {
  return engine::memory_guard([&]() -> Status {
    if (owned_ == nullptr) {
      return option_error(Name::kStateDict, Message::kOwnParameters);
    }
    dict = owned_->state_dict();
    return {};
  });
}

Status TransformerBlock::forward(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                                 const TransformerBlockOutputs& outputs, Trace* trace,
                                 Context& context) const {
  return engine::memory_guard([&] { return call(x, options, outputs, nullptr, trace, context); });
}

Status TransformerBlock::step(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                              const TransformerBlockOutputs& outputs,
                              MultiHeadAttentionCache& cache, Trace* trace,
                              Context& context) const {
  const int64_t before = cache.length();
  Status status =
      engine::memory_guard([&] { return call(x, options, outputs, &cache, trace, context); });
  // The attention took the tokens in, and what follows it failed.
  if (!status.ok() && cache.length() != before) {
    if (Status undone = cache.rewind(before); !undone.ok()) return undone;
  }
  return status;
}

Status TransformerBlock::call(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                              const TransformerBlockOutputs& outputs,
                              MultiHeadAttentionCache* cache, Trace* trace,
                              Context& context) const {
  if (owned_ == nullptr) {
    return option_error(Name::kBlock, Message::kLoaded);
  }
  constexpr Axes kAxes = Axes::kBatchTokens;
  if (Status status = engine::validate_rank(Name::kX, kAxes, x, 3); !status.ok()) return status;
  const Dims shape{x.shape[0], x.shape[1], config_.attention.embed_dim};
  const struct {
    Name name;
    const ConstTensor tensor;
  } tensors[] = {
      {Name::kX, x}, {Name::kOut, outputs.out}, {Name::kAttentionOut, outputs.attention_out}};
  for (const auto& [name, tensor] : tensors) {
    if (name == Name::kAttentionOut && !tensor.given()) continue;
    if (Status status = validate_exact(name, kAxes, tensor, shape); !status.ok()) return status;
    if (!(tensor.strides == contiguous_strides(shape))) {
      return shape_error(name, Message::kContiguous, tensor.strides);
    }
  }
  const int64_t rows = shape[0] * shape[1];
  nn::Arena arena;
  Scratch::count(config_, rows, arena);
  if (Status status = arena.reserve(engine::scratch_of(context).stack()); !status.ok())
    return status;
  return run(x, options, outputs, cache, trace, Scratch::take(config_, rows, arena), context);
}

Status TransformerBlock::run(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                             const TransformerBlockOutputs& outputs, MultiHeadAttentionCache* cache,
                             Trace* trace, const Scratch& scratch, Context& context) const {
  const int64_t width = config_.attention.embed_dim, inner = config_.mlp_dim;
  const int64_t rows = x.shape[0] * x.shape[1], floats = rows * width;
  const Dims flat{rows, width};
  const bool norms = config_.norm != Norm::kNone;
  const bool before = norms && config_.norm_first, after = norms && !config_.norm_first;
  const auto normalise = [&](const float* from, bool first, float* to) {
    return nn::normalise(
        config_.norm, {from, flat}, first ? weights_.norm1_weight : weights_.norm2_weight,
        first ? weights_.norm1_bias : weights_.norm2_bias, config_.norm_eps, {to, flat}, context);
  };
  const float* attended_to = x.data;
  if (before) {
    if (Status status = normalise(x.data, true, scratch.normed); !status.ok()) return status;
    attended_to = scratch.normed;
  }
  const ConstTensor input(attended_to, x.shape);
  const Tensor attended(scratch.attended, x.shape);
  Status status =
      cache == nullptr
          ? attention_.forward({.query = input}, options, {.out = attended}, trace, context)
          : attention_.step(input, options, {.out = attended}, *cache, trace, context);
  if (!status.ok()) return status;
  // The first of the outputs that is written: x and out may be the same from here on.
  if (outputs.attention_out.given()) {
    std::copy_n(scratch.attended, floats, outputs.attention_out.data);
  }
  float* const out = outputs.out.data;
  if (out != x.data) std::copy_n(x.data, floats, out);
  add(scratch.attended, floats, out);
  if (after) {
    if (status = normalise(out, true, out); !status.ok()) return status;
  }
  if (inner == 0) return {};

  const float* mlp_in = out;
  if (before) {
    if (status = normalise(out, false, scratch.normed); !status.ok()) return status;
    mlp_in = scratch.normed;
  }
  const Dims wide{rows, inner};
  const ConstTensor from(mlp_in, flat);
  const Tensor hidden(scratch.inner, wide), gate(scratch.gate, wide);
  status = linear(from, weights_.linear1_weight, weights_.linear1_bias, hidden, context);
  if (!status.ok()) return status;
  if (config_.gated) {
    status = linear(from, weights_.gate_weight, weights_.gate_bias, gate, context);
    if (!status.ok()) return status;
    status = activate_gated(gate, hidden, config_.activation, hidden, context);
  } else {
    status = activate(hidden, config_.activation, hidden, context);
  }
  if (!status.ok()) return status;
  status = linear(hidden, weights_.linear2_weight, weights_.linear2_bias, {scratch.attended, flat},
                  context);
  if (!status.ok()) return status;
  add(scratch.attended, floats, out);
  return after ? normalise(out, false, out) : Status();
}

}  // namespace multihead
