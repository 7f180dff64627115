// The parameters of a MultiHeadAttention: which members of its weights there are, in which shapes,
// and under which names a state dict holds them, alone or within a block.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/error/error.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "multihead/multi_head_attention.h"
#include "nn/parameters.h"

namespace multihead {

struct MultiHeadAttention::Memory {
  nn::Parameters parameters;     // copies that load_state_dict() made; empty after use_weights()
  engine::Buffer absorbed_keys;  // of latent attention; see nn::make_absorbed_keys()
  uint64_t version = nn::new_version();  // of the weights
};

// What the library does with modules, beyond their public calls. Failed allocations throw.
struct MultiHeadAttention::Internals {
  // load_state_dict()
  static Status load(MultiHeadAttention& module, const StateDict& dict, const nn::Loading& loading);
  // Takes weights that are valid, or shares of them.
  static Status take_weights(MultiHeadAttention& module, const MultiHeadAttentionWeights& weights,
                             std::shared_ptr<Memory> memory, const nn::Loading& loading);
  // create_cache(); with a team, for the heads of this member.
  static Status create_cache(const MultiHeadAttention& module, const KVCacheConfig& config,
                             const engine::Team* team, MultiHeadAttentionCache& cache);
  // Null if the module has none of its own.
  static const nn::Parameters* parameters(const MultiHeadAttention& module) {
    return module.memory_ == nullptr ? nullptr : &module.memory_->parameters;
  }
};

namespace nn {

using MultiHeadAttentionWeightGradients = BasicMultiHeadAttentionWeights<Tensor>;

// The differences between the names of PyTorch and of GPT-2. Latent attention has DeepSeek's names.
struct AttentionNames {
  const char* in_proj_weight = "in_proj_weight";
  const char* in_proj_bias = "in_proj_bias";
  const char* out_proj = "out_proj";
  DictLayout matrices = DictLayout::kAsInMemory;
  // q_proj_weight, k_proj_weight and v_proj_weight instead of in_proj_weight; in_proj_bias stays.
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
  bool exists;       // in a module of this config
  std::string name;  // of the tensor in a state dict; several parameters can be rows of one tensor

  // use_weights() may leave out biases and gains.
  bool optional() const { return role == ParameterRole::kBias || role == ParameterRole::kGain; }
};

// Every member, in the order in which parameters lie in memory. `config` is that of a module that
// was created.
std::vector<AttentionParameter> attention_parameters(const MultiHeadAttentionConfig& config,
                                                     const AttentionNames& names = {});

// Adds to `list` those that a state dict holds, with the members of `weights` as views.
void list_attention(const MultiHeadAttentionConfig& config, const std::string& prefix,
                    const AttentionNames& names, MultiHeadAttentionWeights& weights,
                    ParameterList& list);

// The gradients of `weights` within a block like that of the parameters.
MultiHeadAttentionWeightGradients gradients_of(const MultiHeadAttentionWeights& weights,
                                               const GradientBlock& block);

// Whether use_weights() or load_state_dict() succeeded.
inline bool has_weights(const MultiHeadAttentionWeights& weights) {
  return weights.q_proj.given() || weights.q_b_proj.given();
}

// Checks what use_weights() is given.
Status validate_weights(const MultiHeadAttentionConfig& config,
                        const MultiHeadAttentionWeights& weights);
// Each gradient that is given must belong to a weight, and have its shape.
Status validate_weight_gradients(const MultiHeadAttentionConfig& config,
                                 const MultiHeadAttentionWeights& weights,
                                 const MultiHeadAttentionWeightGradients& gradients);

}  // namespace nn
}  // namespace multihead
