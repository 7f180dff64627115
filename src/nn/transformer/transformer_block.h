// Shared by TransformerBlock and Transformer: parameters, scratch memory, norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/error/error.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/team.h"
#include "multihead/transformer.h"
#include "nn/call_memory.h"
#include "nn/dropout_sites.h"
#include "nn/parameters.h"
#include "rules/arena.h"

namespace multihead {

struct TransformerBlock::Memory {
  nn::Parameters parameters;
  uint64_t version = nn::new_version();  // of their values

  // Adds the parameters of `block`, whose weights get the views. Those of its attention go to
  // `attention`, for MultiHeadAttention::use_weights().
  static void list(TransformerBlock& block, const std::string& prefix, ParameterNames names,
                   MultiHeadAttentionWeights& attention, nn::ParameterList& list);
};

namespace nn {
struct BlockArrays;
struct BlockBackwardArrays;
}  // namespace nn

// What the library does with blocks, beyond their public calls. Failed allocations throw.
struct TransformerBlock::Internals {
  // load_state_dict()
  static Status load(TransformerBlock& block, const StateDict& dict, ParameterNames names,
                     const nn::Loading& loading);
  // Null if the block has none of its own.
  static const nn::Parameters* parameters(const TransformerBlock& block) {
    return block.memory_ == nullptr ? nullptr : &block.memory_->parameters;
  }

  // forward() of checked arguments, or step() if there is a cache.
  static Status run(const TransformerBlock& block, const ConstTensor& x,
                    const MultiHeadAttentionOptions& options,
                    const TransformerBlockOutputs& outputs, MultiHeadAttentionCache* cache,
                    Trace* trace, const nn::BlockArrays& arrays, Context& context);
  // backward() of checked arguments. d (B, N, embed_dim) is the gradient of the output, and becomes
  // that of x.
  static Status back(const TransformerBlock& block, const ConstTensor& x,
                     const MultiHeadAttentionOptions& options, const nn::BlockArrays& arrays,
                     const nn::BlockBackwardArrays& back, const Tensor& d, float* gradients,
                     Context& context);
};

// The same for transformers.
struct Transformer::Internals {
  // load_state_dict(), or initialise() if `dict` is null.
  static Status take_parameters(Transformer& model, const StateDict* dict,
                                const Initialisation& initialisation, ParameterNames names,
                                const nn::Loading& loading);
  static Status load(Transformer& model, const StateDict& dict, ParameterNames names,
                     const nn::Loading& loading) {
    return take_parameters(model, &dict, {}, names, loading);
  }
  static Status create_cache(const Transformer& model, const KVCacheConfig& config,
                             const engine::Team* team, TransformerCache& cache);
  // Null if the model has none.
  static const nn::Parameters* parameters(const Transformer& model) {
    return model.memory_ == nullptr ? nullptr : &model.memory_->parameters;
  }
};

namespace nn {

// A tensor of a block's call: contiguous, of that shape.
Status validate_rows(engine::Name name, const ConstTensor& tensor, const Dims& shape);

// The arrays of one block's call. Those that backward() does not need again share memory, and all
// layers of a Transformer use the same, unless they are kept.
struct BlockArrays {
  float* normed = nullptr;    // (rows, embed_dim): norm1(x), which the attention gets
  float* branch = nullptr;    // (rows, embed_dim): the attention's output, then the MLP's
  float* residual = nullptr;  // (rows, embed_dim): x + attention; null if it is in `out`
  float* mlp_in = nullptr;    // (rows, embed_dim): what the MLP gets, if that is not the residual
  float* inner = nullptr;     // (rows, mlp_dim): linear1(mlp_in)
  float* gate = nullptr;      // (rows, mlp_dim): linear_gate(mlp_in), if gated
  float* hidden = nullptr;    // (rows, mlp_dim): what linear2 gets
  float* sum = nullptr;       // (rows, embed_dim): mlp_in + MLP, before norm2; null if in `out`
  MultiHeadAttentionActivations* attention = nullptr;  // if they are kept

  void lay_out(const TransformerBlockConfig& config, int64_t rows, bool keeps, rules::Arena& take);
};

// The arrays of one block's backward(), which all layers use.
struct BlockBackwardArrays {
  float* d_branch = nullptr;  // (rows, embed_dim)
  float* d_normed = nullptr;  // (rows, embed_dim)
  float* d_hidden = nullptr;  // (rows, mlp_dim)
  float* d_gate = nullptr;    // (rows, mlp_dim), if gated

  void lay_out(const TransformerBlockConfig& config, int64_t rows, rules::Arena& take);
};

// The parameters of one of the block's norms, if it has some: `name`.weight, and for a LayerNorm
// `name`.bias.
void list_norm(const std::string& name, const TransformerBlockConfig& config, ConstTensor& weight,
               ConstTensor& bias, ParameterList& list);

Status normalise(Norm norm, const ConstTensor& x, const ConstTensor& weight,
                 const ConstTensor& bias, float epsilon, const Tensor& y, Context& context);

// The backward of a norm of the config's kind, whose parameters are `weight` and `bias`. d_y may be
// d_x if that is not added to.
Status normalise_back(const TransformerBlockConfig& config, const float* x,
                      const ConstTensor& weight, const ConstTensor& bias, const float* d_y,
                      const Tensor& d_x, bool adds_to_d_x, const GradientBlock& block,
                      Context& context);

// Of the embeddings; a probability of 0 for none.
inline engine::RowDropout embedding_dropout(const TransformerConfig& config,
                                            const MultiHeadAttentionOptions& options) {
  return {options.training ? config.embedding_dropout : 0.0F, options.dropout_seed, kEmbeddings};
}

// Whether this is one of the buffers in GPT-2's checkpoints, which are not parameters.
bool is_gpt2_buffer(std::string_view name);

// "transformer." if the names of this dict have that prefix, else an empty string.
std::string gpt2_prefix(const StateDict& dict);

// "h.N." or "layers.N.", behind the prefix.
std::string layer_name(const std::string& prefix, ParameterNames names, size_t layer);

// At least 0, less than 1.
Status validate_probability(engine::Name name, float probability);

// kGpt2 has no names for latent attention.
Status validate_names(ParameterNames names, const MultiHeadAttentionConfig& config);

}  // namespace nn
}  // namespace multihead
