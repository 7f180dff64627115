// Shared by TransformerBlock and Transformer: parameters, scratch memory, norms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "multihead/transformer.h"
#include "nn/call_memory.h"
#include "nn/parameters.h"
#include "rules/arena.h"

namespace multihead {

struct TransformerBlock::Memory {
  nn::Parameters parameters;

  // Adds the parameters of `block`, whose weights get the views. Those of its attention go to
  // `attention`, for MultiHeadAttention::use_weights().
  static void list(TransformerBlock& block, const std::string& prefix, ParameterNames names,
                   MultiHeadAttentionWeights& attention, nn::ParameterList& list);
};

// Scratch memory of one block's call. All layers of a Transformer use the same.
struct TransformerBlock::Scratch {
  float* normed = nullptr;    // (rows, embed_dim)
  float* attended = nullptr;  // (rows, embed_dim)
  float* inner = nullptr;     // (rows, mlp_dim)
  float* gate = nullptr;      // (rows, mlp_dim), if gated

  void lay_out(const TransformerBlockConfig& config, int64_t rows, rules::Arena& take) {
    take(normed, nn::saturated_elements({rows, config.attention.embed_dim}));
    take(attended, nn::saturated_elements({rows, config.attention.embed_dim}));
    take(inner, nn::saturated_elements({rows, config.mlp_dim}));
    take(gate, config.gated ? nn::saturated_elements({rows, config.mlp_dim}) : 0);
  }
};

namespace nn {

// `name`.weight and for a LayerNorm `name`.bias.
void list_norm(const std::string& name, Norm norm, int64_t width, ConstTensor& weight,
               ConstTensor& bias, ParameterList& list);

Status normalise(Norm norm, const ConstTensor& x, const ConstTensor& weight,
                 const ConstTensor& bias, float epsilon, const Tensor& y, Context& context);

// Whether this is one of the buffers in GPT-2's checkpoints, which are not parameters.
bool is_gpt2_buffer(std::string_view name);

// kGpt2 has no names for latent attention.
Status validate_names(ParameterNames names, const MultiHeadAttentionConfig& config);

}  // namespace nn
}  // namespace multihead
