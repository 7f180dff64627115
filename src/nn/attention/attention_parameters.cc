#include "nn/attention/attention_parameters.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "nn/attention/latent.h"

namespace multihead {

namespace nn {
namespace {

using W = MultiHeadAttentionWeights;
using G = MultiHeadAttentionWeightGradients;

// Each weight, with its gradient.
constexpr struct {
  ConstTensor W::*weight;
  Tensor G::*gradient;
} kMembers[] = {
    {&W::q_proj, &G::q_proj},       {&W::k_proj, &G::k_proj},       {&W::v_proj, &G::v_proj},
    {&W::q_bias, &G::q_bias},       {&W::k_bias, &G::k_bias},       {&W::v_bias, &G::v_bias},
    {&W::out_proj, &G::out_proj},   {&W::out_bias, &G::out_bias},   {&W::bias_k, &G::bias_k},
    {&W::bias_v, &G::bias_v},       {&W::sinks, &G::sinks},         {&W::q_norm, &G::q_norm},
    {&W::k_norm, &G::k_norm},       {&W::q_a_proj, &G::q_a_proj},   {&W::q_a_bias, &G::q_a_bias},
    {&W::q_a_norm, &G::q_a_norm},   {&W::q_b_proj, &G::q_b_proj},   {&W::kv_a_proj, &G::kv_a_proj},
    {&W::kv_a_bias, &G::kv_a_bias}, {&W::kv_a_norm, &G::kv_a_norm}, {&W::kv_b_proj, &G::kv_b_proj}};

Tensor G::*gradient_of(ConstTensor W::*weight) {
  return std::ranges::find(kMembers, weight, [](const auto& m) { return m.weight; })->gradient;
}

}  // namespace

MultiHeadAttentionWeightGradients gradients_of(const MultiHeadAttentionWeights& weights,
                                               const GradientBlock& block) {
  MultiHeadAttentionWeightGradients gradients;
  for (const auto& [weight, gradient] : kMembers) gradients.*gradient = block.of(weights.*weight);
  return gradients;
}

AttentionParameters attention_parameters(const MultiHeadAttentionConfig& c,
                                         const AttentionNames& names) {
  using enum ParameterRole;
  const bool latent = c.kv_latent_dim > 0, q_latent = c.q_latent_dim > 0;
  const int64_t q_rows = c.num_heads * c.head_dim;
  const int64_t k_rows = c.num_kv_heads * c.head_dim, v_rows = c.num_kv_heads * c.value_dim;
  const int64_t compressed_kv_dim = c.kv_latent_dim + c.rope_head_dim;
  const int64_t kv_b_rows = c.num_heads * (c.head_dim - c.rope_head_dim + c.value_dim);
  const auto projection = [&](const char* alone) {
    return names.separate ? alone : names.in_proj_weight;
  };
  const auto of = [](ConstTensor W::*member, Name argument, Axes axes, const Dims& shape,
                     ParameterRole role, bool exists, const char* name) {
    return AttentionParameter{member, gradient_of(member), argument, axes, shape, role, exists,
                              name};
  };
  return {
      of(&W::q_proj, Name::kQProj, Axes::kQProj, {q_rows, c.embed_dim}, kWeight, !q_latent,
         latent ? "q_proj.weight" : projection("q_proj_weight")),
      of(&W::k_proj, Name::kKProj, Axes::kKProj, {k_rows, c.kdim}, kWeight, !latent,
         projection("k_proj_weight")),
      of(&W::v_proj, Name::kVProj, Axes::kVProj, {v_rows, c.vdim}, kWeight, !latent,
         projection("v_proj_weight")),
      of(&W::q_bias, Name::kQBias, Axes::kQBias, {q_rows}, kBias, !latent, names.in_proj_bias),
      of(&W::k_bias, Name::kKBias, Axes::kKBias, {k_rows}, kBias, !latent, names.in_proj_bias),
      of(&W::v_bias, Name::kVBias, Axes::kVBias, {v_rows}, kBias, !latent, names.in_proj_bias),

      of(&W::q_a_proj, Name::kQAProj, Axes::kQAProj, {c.q_latent_dim, c.embed_dim}, kWeight,
         q_latent, "q_a_proj.weight"),
      of(&W::q_a_bias, Name::kQABias, Axes::kQLatent, {c.q_latent_dim}, kBias, q_latent,
         "q_a_proj.bias"),
      of(&W::q_a_norm, Name::kQANorm, Axes::kQLatent, {c.q_latent_dim}, kGain, q_latent,
         "q_a_layernorm.weight"),
      of(&W::q_b_proj, Name::kQBProj, Axes::kQBProj, {q_rows, c.q_latent_dim}, kWeight, q_latent,
         "q_b_proj.weight"),
      of(&W::kv_a_proj, Name::kKvAProj, Axes::kKvAProj, {compressed_kv_dim, c.embed_dim}, kWeight,
         latent, "kv_a_proj_with_mqa.weight"),
      of(&W::kv_a_bias, Name::kKvABias, Axes::kKvABias, {compressed_kv_dim}, kBias, latent,
         "kv_a_proj_with_mqa.bias"),
      of(&W::kv_a_norm, Name::kKvANorm, Axes::kKvLatent, {c.kv_latent_dim}, kGain, latent,
         "kv_a_layernorm.weight"),
      of(&W::kv_b_proj, Name::kKvBProj, Axes::kKvBProj, {kv_b_rows, c.kv_latent_dim}, kWeight,
         latent, "kv_b_proj.weight"),

      of(&W::out_proj, Name::kOutProj, Axes::kOutProj, {c.out_dim, c.num_heads * c.value_dim},
         kResidualWeight, c.out_proj, latent ? "o_proj.weight" : names.out_proj_weight),
      of(&W::out_bias, Name::kOutBias, Axes::kOutBias, {c.out_dim}, kBias, c.out_proj,
         latent ? "o_proj.bias" : names.out_proj_bias),
      of(&W::bias_k, Name::kBiasK, Axes::kKBias, {k_rows}, kAppended, c.add_bias_kv, "bias_k"),
      of(&W::bias_v, Name::kBiasV, Axes::kVBias, {v_rows}, kAppended, c.add_bias_kv, "bias_v"),
      of(&W::sinks, Name::kSinks, Axes::kSinks, {c.num_heads}, kSink, c.sinks, "sinks"),
      of(&W::q_norm, Name::kQNorm, Axes::kHeadNorm, {c.head_dim}, kGain, c.qk_norm,
         "q_norm.weight"),
      of(&W::k_norm, Name::kKNorm, Axes::kHeadNorm, {c.head_dim}, kGain, c.qk_norm,
         "k_norm.weight"),
  };
}

void list_attention(const MultiHeadAttentionConfig& config, const std::string& prefix,
                    const AttentionNames& names, MultiHeadAttentionWeights& weights,
                    ParameterList& list) {
  for (const AttentionParameter& p : attention_parameters(config, names)) {
    if (!p.exists || (p.role == ParameterRole::kBias && !config.bias)) continue;
    const DictLayout layout = p.role == ParameterRole::kAppended ? DictLayout::kThreeAxes
                              : p.shape.rank() == 2              ? names.matrices
                                                                 : DictLayout::kAsInMemory;
    // Latent attention reads the rows of kv_b_proj head by head, so a team does not divide them.
    const bool divides = p.shape.rank() == 2 && p.member != &W::kv_b_proj;
    list.add(prefix + p.name, p.shape, p.role, weights.*p.member, layout,
             divides ? Held::kShare : Held::kWhole);
  }
}

Status validate_weights(const MultiHeadAttentionConfig& config,
                        const MultiHeadAttentionWeights& weights) {
  if (weights.out_bias.given() && !weights.out_proj.given()) {
    return option_error(Name::kOutBias, Message::kOutProjForBias);
  }
  for (const AttentionParameter& p : attention_parameters(config)) {
    const ConstTensor& tensor = weights.*p.member;
    if (!p.exists && tensor.given()) return option_error(p.argument, Message::kNotInConfig);
    if (!tensor.given() && (!p.exists || p.optional())) continue;
    MULTIHEAD_TRY(engine::validate_exact(p.argument, p.axes, tensor, p.shape));
  }
  return {};
}

Status validate_weight_gradients(const MultiHeadAttentionConfig& config,
                                 const MultiHeadAttentionWeights& weights,
                                 const MultiHeadAttentionWeightGradients& gradients) {
  for (const AttentionParameter& p : attention_parameters(config)) {
    const Tensor& gradient = gradients.*p.gradient;
    if (!gradient.given()) continue;
    if (!(weights.*p.member).given()) return option_error(p.argument, Message::kGradientOfNone);
    MULTIHEAD_TRY(engine::validate_exact(p.argument, p.axes, gradient, p.shape));
  }
  return {};
}

}  // namespace nn

Status MultiHeadAttention::load_state_dict(const StateDict& dict) {
  return engine::memory_guard([&] { return Internals::load(*this, dict, {}); });
}

Status MultiHeadAttention::Internals::load(MultiHeadAttention& module, const StateDict& dict,
                                           const nn::Loading& loading) {
  const MultiHeadAttentionConfig& c = module.config_;
  if (module.id_ == 0) return option_error(Name::kModule, Message::kCreated);
  const nn::AttentionNames names{.separate = c.kdim != c.embed_dim || c.vdim != c.embed_dim ||
                                             dict.contains("q_proj_weight")};
  MultiHeadAttentionWeights weights;
  nn::ParameterList list(loading.team);
  nn::list_attention(c, "", names, weights, list);
  auto memory = std::make_shared<Memory>();
  MULTIHEAD_TRY(memory->parameters.load(list, dict, loading));
  return take_weights(module, weights, std::move(memory), loading);
}

Status MultiHeadAttention::gradients_in(std::span<float> block,
                                        BasicMultiHeadAttentionWeights<Tensor>& gradients) const {
  MULTIHEAD_TRY(nn::validate_block(*this, block.size()));
  gradients = nn::gradients_of(weights_, {memory_->parameters.values(), block.data()});
  return {};
}

Status MultiHeadAttention::use_weights(const MultiHeadAttentionWeights& weights) {
  return engine::memory_guard([&]() -> Status {
    if (id_ == 0) return option_error(Name::kModule, Message::kCreated);
    MULTIHEAD_TRY(nn::validate_weights(config_, weights));
    return Internals::take_weights(*this, weights, std::make_shared<Memory>(), {});
  });
}

MultiHeadAttention MultiHeadAttention::Internals::without_out_proj(
    const MultiHeadAttention& module) {
  MultiHeadAttention result = module;
  result.config_.out_proj = false;
  result.config_.out_dim = module.config_.num_heads * module.config_.value_dim;
  result.weights_.out_proj = {};
  result.weights_.out_bias = {};
  return result;
}

void MultiHeadAttention::weights_changed() {
  if (memory_ == nullptr) return;
  memory_->version = nn::new_version();
  if (config_.kv_latent_dim == 0) return;
  // Cannot fail: the memory is allocated already.
  (void)nn::make_absorbed_keys(config_, weights_.kv_b_proj, memory_->absorbed_keys);
}

Status MultiHeadAttention::Internals::take_weights(MultiHeadAttention& module,
                                                   const MultiHeadAttentionWeights& weights,
                                                   std::shared_ptr<Memory> memory,
                                                   const nn::Loading& loading) {
  if (module.config_.kv_latent_dim > 0) {
    MULTIHEAD_TRY(nn::make_absorbed_keys(module.config_, weights.kv_b_proj, memory->absorbed_keys));
  }
  MULTIHEAD_TRY(loading.agree());
  if (loading.same_values && module.memory_ != nullptr) memory->version = module.memory_->version;
  module.weights_ = weights;
  module.memory_ = std::move(memory);
  return {};
}

}  // namespace multihead
