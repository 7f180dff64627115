#include "nn/transformer/transformer_block.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/scratch.h"
#include "nn/attention/attention_parameters.h"
#include "nn/call_memory.h"

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

void TransformerBlock::Internals::list(const TransformerBlockConfig& config,
                                       const std::string& prefix, ParameterNames names,
                                       nn::BlockViews& views, nn::ParameterList& list) {
  const BlockNames& n = names_of(names);
  const int64_t width = config.attention.embed_dim;
  nn::list_norm(prefix + n.norm1, config, views.norm1_weight, views.norm1_bias, list);
  nn::list_attention(config.attention, prefix + n.attention, n.attention_names, views.attention,
                     list);
  if (config.mlp_dim == 0) return;
  nn::list_norm(prefix + n.norm2, config, views.norm2_weight, views.norm2_bias, list);
  const auto list_linear = [&](const char* name, int64_t out, int64_t in, ConstTensor& weight,
                               ConstTensor& bias, nn::ParameterRole role) {
    list.add_linear(prefix + name, out, in, role, n.attention_names.matrices, weight,
                    config.mlp_bias ? &bias : nullptr);
  };
  using enum nn::ParameterRole;
  const int64_t wide = config.mlp_dim;
  list_linear(n.linear1, wide, width, views.linear1_weight, views.linear1_bias, kWeight);
  if (config.gated) list_linear(n.gate, wide, width, views.gate_weight, views.gate_bias, kWeight);
  list_linear(n.linear2, width, wide, views.linear2_weight, views.linear2_bias, kResidualWeight);
}

Status TransformerBlock::Internals::take(TransformerBlock& block, const nn::BlockViews& views,
                                         std::shared_ptr<Memory> memory,
                                         const nn::Loading& loading) {
  MULTIHEAD_TRY(MultiHeadAttention::Internals::take_weights(
      block.attention_, views.attention, std::make_shared<MultiHeadAttention::Memory>(), loading));
  block.list_ = std::make_shared<nn::BlockList>(block.config_, views);
  block.memory_ = std::move(memory);
  return {};
}

Status TransformerBlock::load_state_dict(const StateDict& dict, ParameterNames names) {
  return engine::memory_guard([&] { return Internals::load(*this, dict, names, {}); });
}

Status TransformerBlock::Internals::load(TransformerBlock& block, const StateDict& dict,
                                         ParameterNames names, const nn::Loading& loading) {
  if (block.config_.attention.embed_dim == 0) {
    return option_error(Name::kBlock, Message::kCreated);
  }
  MULTIHEAD_TRY(nn::validate_names(names, block.config_.attention));
  // Loads a copy, so that an error leaves this block unchanged.
  TransformerBlock loaded = block;
  nn::BlockViews views;
  nn::ParameterList list(loading.team);
  Internals::list(block.config_, "", names, views, list);
  const bool gpt2 = names == ParameterNames::kGpt2;
  const auto ignored = [&](std::string_view name) { return gpt2 && nn::is_gpt2_buffer(name); };
  auto memory = std::make_shared<Memory>();
  MULTIHEAD_TRY(memory->parameters.load(list, dict, loading, ignored));
  if (loading.same_values && block.memory_ != nullptr) memory->version = block.memory_->version;
  MULTIHEAD_TRY(take(loaded, views, std::move(memory), loading));
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
  nn::BlockCall run(block, options, shape[0], shape[1]);
  run.module_cache = cache;
  run.trace = trace;
  run.attention_out = outputs.attention_out;
  const nn::Graph& graph = run.list.graph;
  float* const input = const_cast<float*>(x.data);  // not written, unless it is `out`
  nn::Frame frame;
  if (outputs.activations == nullptr) {
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).transformer(),
                              [&](rules::Arena& take) { frame.lay_out(graph, run.rows(), take); }));
    frame.bind(graph, run, input, outputs.out.data);
    return nn::forward(graph, frame, run, context);
  }
  if (cache != nullptr) return option_error(Name::kActivations, Message::kNoneInStep);
  if (x.data == outputs.out.data && shape.elements() != 0) {
    return option_error(Name::kOut, Message::kNotInPlace);
  }
  nn::KeptBlock* kept = nullptr;
  MULTIHEAD_TRY(nn::ActivationsAccess::make(*outputs.activations, kept));
  MULTIHEAD_TRY(kept->begin(block.memory_->version, shape, [&](rules::Arena& take) {
    frame.lay_out_kept(graph, run, input, outputs.out.data, take);
  }));
  run.activations = &kept->attention;
  MULTIHEAD_TRY(nn::forward(graph, frame, run, context));
  kept->end();
  return {};
}

Status TransformerBlock::backward(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                                  const ConstTensor& d_out,
                                  const TransformerBlockActivations& activations, const Tensor& d_x,
                                  std::span<float> gradients, Context& context) const {
  return engine::memory_guard([&]() -> Status {
    if (memory_ == nullptr) return option_error(Name::kBlock, Message::kLoaded);
    constexpr Axes kAxes = Axes::kBatchTokens;
    MULTIHEAD_TRY(engine::validate_rank(Name::kX, kAxes, x, 3));
    const Dims shape{x.shape[0], x.shape[1], config_.attention.embed_dim};
    MULTIHEAD_TRY(nn::validate_rows(Name::kX, kAxes, x, shape));
    MULTIHEAD_TRY(nn::validate_rows(Name::kDOut, kAxes, d_out, shape));
    if (d_x.given()) MULTIHEAD_TRY(nn::validate_rows(Name::kDX, kAxes, d_x, shape));
    MULTIHEAD_TRY(engine::renamed(nn::validate_block(*this, gradients.size()), Name::kBlock,
                                  Name::kGradients));
    const nn::KeptBlock* const kept = nn::ActivationsAccess::find(activations);
    if (kept == nullptr || !kept->belong_to(memory_->version, shape)) {
      return option_error(Name::kActivations, Message::kActivationsOfCall);
    }
    nn::BlockCall run(*this, options, shape[0], shape[1]);
    run.activations = const_cast<MultiHeadAttentionActivations*>(&kept->attention);  // only read
    // x may be at another address than in forward(). The output is not read.
    nn::Frame values;
    rules::Arena filled(kept->data());
    values.lay_out_kept(run.list.graph, run, const_cast<float*>(x.data), nullptr, filled);
    float* own = nullptr;  // if d_x is not requested
    nn::BlockGradients d;
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).transformer(), [&](rules::Arena& take) {
      take(own, d_x.given() ? 0 : nn::saturated_elements(shape));
      d.lay_out(run, d_x.given() ? d_x.data : own, take);
    }));
    float* const to = d_x.given() ? d_x.data : own;
    if (to != d_out.data) {
      const Dims one_head{1, 1, run.rows(), shape[2]};
      engine::copy_rows({d_out.data, one_head}, {to, one_head}, context);
    }
    return nn::backward(run, values, d, gradients.data(), context);
  });
}

}  // namespace multihead

template class multihead::Activations<multihead::nn::KeptBlock>;
