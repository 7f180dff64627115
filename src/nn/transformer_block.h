// What TransformerBlock and Transformer share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "multihead/transformer.h"
#include "nn/module_run.h"
#include "nn/parameters.h"

namespace multihead {

// Memory of one block's call, reused from layer to layer.
struct TransformerBlock::Scratch {
  float* normed;    // (rows, embed_dim)
  float* attended;  // (rows, embed_dim)
  float* inner;     // (rows, mlp_dim)
  float* gate;      // (rows, mlp_dim), where gated

  static void count(const TransformerBlockConfig& config, int64_t rows, nn::Arena& arena) {
    arena.count_floats(rows * config.attention.embed_dim);
    arena.count_floats(rows * config.attention.embed_dim);
    arena.count_floats(rows * config.mlp_dim);
    arena.count_floats(config.gated ? rows * config.mlp_dim : 0);
  }
  static Scratch take(const TransformerBlockConfig& config, int64_t rows, nn::Arena& arena) {
    Scratch scratch{};
    scratch.normed = arena.take_floats(rows * config.attention.embed_dim);
    scratch.attended = arena.take_floats(rows * config.attention.embed_dim);
    scratch.inner = arena.take_floats(rows * config.mlp_dim);
    scratch.gate = arena.take_floats(config.gated ? rows * config.mlp_dim : 0);
    return scratch;
  }
};

namespace nn {

// weight and bias under `name` of the kind; the bias only where there is one.
void add_norm(Parameters& parameters, const std::string& name, Norm norm, int64_t width);

Status normalise(Norm norm, const ConstTensor& x, const ConstTensor& weight,
                 const ConstTensor& bias, float epsilon, const Tensor& y, Context& context);

// The buffers that GPT-2's checkpoints hold beside the parameters.
bool is_gpt2_buffer(std::string_view name);

// GPT-2's have none for latent attention.
Status validate_names(ParameterNames names, const MultiHeadAttentionConfig& config);

}  // namespace nn
}  // namespace multihead
