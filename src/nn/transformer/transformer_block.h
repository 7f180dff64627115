// Shared by TransformerBlock and Transformer: parameters, scratch memory, norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/error/error.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/team.h"
#include "multihead/transformer.h"
#include "nn/call_memory.h"
#include "nn/dropout_sites.h"
#include "nn/kept.h"
#include "nn/parameters.h"
#include "rules/arena.h"

namespace multihead {

namespace nn {
struct BlockArrays;
struct BlockBackwardArrays;
}  // namespace nn

// Operations on blocks for internal use. Failed allocations throw.
struct TransformerBlock::Internals {
  // Implements load_state_dict().
  static Status load(TransformerBlock& block, const StateDict& dict, ParameterNames names,
                     const nn::Loading& loading);
  // Adds the parameters of `block` to `list`, with the block's weights as views. The views of its
  // attention go to `attention`, for MultiHeadAttention::use_weights().
  static void list(TransformerBlock& block, const std::string& prefix, ParameterNames names,
                   MultiHeadAttentionWeights& attention, nn::ParameterList& list);

  // Implements forward(), or step() if there is a cache.
  static Status call(const TransformerBlock& block, const ConstTensor& x,
                     const MultiHeadAttentionOptions& options,
                     const TransformerBlockOutputs& outputs, MultiHeadAttentionCache* cache,
                     Trace* trace, Context& context);
  // Runs forward() with checked arguments, or step() if there is a cache.
  static Status run(const TransformerBlock& block, const ConstTensor& x,
                    const MultiHeadAttentionOptions& options,
                    const TransformerBlockOutputs& outputs, MultiHeadAttentionCache* cache,
                    Trace* trace, const nn::BlockArrays& arrays, Context& context);
  // Runs backward() with checked arguments. d (B, N, embed_dim) holds the gradient of the output
  // and is overwritten with the gradient of x.
  static Status back(const TransformerBlock& block, const ConstTensor& x,
                     const MultiHeadAttentionOptions& options, const nn::BlockArrays& arrays,
                     const nn::BlockBackwardArrays& back, const Tensor& d, float* gradients,
                     Context& context);
};

// Operations on transformers for internal use. Failed allocations throw.
struct Transformer::Internals {
  // Implements load_state_dict(), or initialize() if `dict` is null.
  static Status take_parameters(Transformer& model, const StateDict* dict,
                                const Initialization& initialization, ParameterNames names,
                                const nn::Loading& loading);
  static Status load(Transformer& model, const StateDict& dict, ParameterNames names,
                     const nn::Loading& loading) {
    return take_parameters(model, &dict, {}, names, loading);
  }
  static Status create_cache(const Transformer& model, const KVCacheConfig& config,
                             const engine::Team* team, TransformerCache& cache);
  // Implements forward(), or step() if there is a cache.
  static Status run(const Transformer& model, std::span<const int32_t> tokens, int64_t batch,
                    const MultiHeadAttentionOptions& options, const TransformerOutputs& outputs,
                    TransformerCache* cache, Context& context);
};

namespace nn {

// Checks that a tensor is contiguous and has this shape.
Status validate_rows(engine::Name name, engine::Axes axes, const ConstTensor& tensor,
                     const Dims& shape);

// The arrays of one block's call. Without `keeps`, arrays that backward() does not read share
// memory, and all layers of a Transformer use one set.
struct BlockArrays {
  float* normed = nullptr;    // (rows, embed_dim): norm1(x), the attention's input
  float* branch = nullptr;    // (rows, embed_dim): the attention's output, then the MLP's
  float* residual = nullptr;  // (rows, embed_dim): x + attention; null if it is in `out`
  float* mlp_in = nullptr;    // (rows, embed_dim): the MLP's input, unless it is the residual
  float* inner = nullptr;     // (rows, mlp_dim): linear1(mlp_in)
  float* gate = nullptr;      // (rows, mlp_dim): linear_gate(mlp_in), if gated
  float* hidden = nullptr;    // (rows, mlp_dim): input of linear2
  float* sum = nullptr;       // (rows, embed_dim): mlp_in + MLP, before norm2; null if in `out`
  MultiHeadAttentionActivations* attention = nullptr;  // only if `keeps`

  void lay_out(const TransformerBlockConfig& config, int64_t rows, bool keeps, rules::Arena& take);
};

// The arrays that a block keeps; a call is identified by the shape of x.
struct KeptBlock : KeptArrays<Dims> {
  BlockArrays arrays;
  MultiHeadAttentionActivations attention;

  int64_t bytes() const { return KeptArrays::bytes() + attention.bytes(); }
};

// Arrays of one block's backward(), shared by all layers.
struct BlockBackwardArrays {
  float* d_branch = nullptr;  // (rows, embed_dim)
  float* d_normed = nullptr;  // (rows, embed_dim)
  float* d_hidden = nullptr;  // (rows, mlp_dim)
  float* d_gate = nullptr;    // (rows, mlp_dim), if gated

  void lay_out(const TransformerBlockConfig& config, int64_t rows, rules::Arena& take);
};

// Lists the parameters of one of the block's norms, if it has any: `name`.weight, and for a
// LayerNorm `name`.bias.
void list_norm(const std::string& name, const TransformerBlockConfig& config, ConstTensor& weight,
               ConstTensor& bias, ParameterList& list);

Status normalize(Norm norm, const ConstTensor& x, const ConstTensor& weight,
                 const ConstTensor& bias, float eps, const Tensor& y, Context& context);

// The backward of a norm of the config's kind with parameters `weight` and `bias`. d_y may be d_x
// unless adds_to_d_x.
Status normalize_back(const TransformerBlockConfig& config, const float* x,
                      const ConstTensor& weight, const ConstTensor& bias, const float* d_y,
                      const Tensor& d_x, bool adds_to_d_x, const GradientBlock& block,
                      Context& context);

// True for buffers in GPT-2 checkpoints, which are not parameters.
bool is_gpt2_buffer(std::string_view name);

// Returns "transformer." if the names of this dict have that prefix, otherwise an empty string.
std::string gpt2_prefix(const StateDict& dict);

// Returns the prefix followed by "h.N." or "layers.N.".
std::string layer_name(const std::string& prefix, ParameterNames names, size_t layer);

// Checks that a probability is at least 0 and less than 1.
Status validate_probability(engine::Name name, float probability);

// Refuses kGpt2 for latent attention, which has no names there.
Status validate_names(ParameterNames names, const MultiHeadAttentionConfig& config);

}  // namespace nn
}  // namespace multihead
