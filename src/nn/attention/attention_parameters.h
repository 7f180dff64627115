// The parameters of a MultiHeadAttention: which members of its weights exist, their shapes, and
// their names in a state dict, alone or within a block.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "multihead/multi_head_attention.h"
#include "nn/parameters.h"
#include "rules/shared.h"

namespace multihead {

// Operations on modules for internal use. Failed allocations throw.
struct MultiHeadAttention::Internals {
  // Implements load_state_dict().
  static Status load(MultiHeadAttention& module, const StateDict& dict, const nn::Loading& loading);
  // Takes valid weights; in a team, the member's share of the weights.
  static Status take_weights(MultiHeadAttention& module, const MultiHeadAttentionWeights& weights,
                             std::shared_ptr<Memory> memory, const nn::Loading& loading);
  // Implements create_cache(). With a team: for the heads of this member only.
  static Status create_cache(const MultiHeadAttention& module, const KVCacheConfig& config,
                             const engine::Team* team, MultiHeadAttentionCache& cache);
  // Returns a module of the same parameters and caches without its output projection.
  MULTIHEAD_SHARED static MultiHeadAttention without_out_proj(const MultiHeadAttention& module);
};

namespace nn {

using MultiHeadAttentionWeightGradients = BasicMultiHeadAttentionWeights<Tensor>;

// Names that differ between PyTorch and GPT-2. Latent attention has DeepSeek's names.
struct AttentionNames {
  const char* in_proj_weight = "in_proj_weight";
  const char* in_proj_bias = "in_proj_bias";
  const char* out_proj_weight = "out_proj.weight";
  const char* out_proj_bias = "out_proj.bias";
  DictLayout matrices = DictLayout::kAsInMemory;
  // If true, q_proj_weight, k_proj_weight and v_proj_weight replace in_proj_weight; in_proj_bias
  // stays.
  bool separate = false;
};

// One member of MultiHeadAttentionWeights.
struct AttentionParameter {
  ConstTensor MultiHeadAttentionWeights::*member;
  Tensor MultiHeadAttentionWeightGradients::*gradient;
  engine::Name argument;  // the member's name, in errors
  engine::Axes axes;      // the shape in terms of the config
  Dims shape;
  ParameterRole role;
  bool exists;       // true if a module of this config has the parameter
  const char* name;  // name of the tensor in a state dict; one tensor may hold several parameters

  // use_weights() accepts weights without biases and gains.
  bool optional() const { return role == ParameterRole::kBias || role == ParameterRole::kGain; }
};

// Every member, in the order in which parameters lie in memory. An array, because backward() lists
// the parameters in every training step, which allocates nothing.
using AttentionParameters = std::array<AttentionParameter, 21>;

// `config` must be the config of a created module.
AttentionParameters attention_parameters(const MultiHeadAttentionConfig& config,
                                         const AttentionNames& names = {});

// Adds the parameters that a state dict holds to `list`, with the members of `weights` as views.
void list_attention(const MultiHeadAttentionConfig& config, const std::string& prefix,
                    const AttentionNames& names, MultiHeadAttentionWeights& weights,
                    ParameterList& list);

// Returns views of the gradients of `weights` in a gradient block, which has the parameters'
// layout.
MultiHeadAttentionWeightGradients gradients_of(const MultiHeadAttentionWeights& weights,
                                               const GradientBlock& block);

// True after use_weights() or load_state_dict() succeeded.
inline bool has_weights(const MultiHeadAttentionWeights& weights) {
  return weights.q_proj.given() || weights.q_b_proj.given();
}

// Checks the arguments of use_weights().
Status validate_weights(const MultiHeadAttentionConfig& config,
                        const MultiHeadAttentionWeights& weights);
// Checks that each given gradient belongs to a weight and has its shape.
Status validate_weight_gradients(const MultiHeadAttentionConfig& config,
                                 const MultiHeadAttentionWeights& weights,
                                 const MultiHeadAttentionWeightGradients& gradients);

}  // namespace nn
}  // namespace multihead
