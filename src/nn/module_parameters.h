// Under which names, and in which shapes, a state dict holds the parameters of a
// MultiHeadAttention, alone or within a block.
#pragma once

#include <string>

#include "engine/scratch.h"
#include "multihead/multi_head_attention.h"
#include "nn/parameters.h"

namespace multihead::nn {

// What differs between namings. Latent attention has its own names in all of them.
struct AttentionNames {
  const char* in_proj_weight = "in_proj_weight";
  const char* in_proj_bias = "in_proj_bias";
  const char* out_proj = "out_proj";
  Parameters::Stored matrices = Parameters::Stored::kAsIs;
  bool separate =
      false;  // q_proj_weight, k_proj_weight and v_proj_weight, of in_proj_bias all the same
};

// `config` is that of a module that was created.
void add_attention(const MultiHeadAttentionConfig& config, const std::string& prefix,
                   const AttentionNames& names, Parameters& parameters);
MultiHeadAttentionWeights attention_weights(const MultiHeadAttentionConfig& config,
                                            const std::string& prefix, const AttentionNames& names,
                                            const Parameters& parameters);

// The shapes of what use_weights() is given.
Status validate_weights(const MultiHeadAttentionConfig& config,
                        const MultiHeadAttentionWeights& weights);

}  // namespace multihead::nn
