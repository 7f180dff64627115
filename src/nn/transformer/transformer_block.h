// Shared by TransformerBlock and Transformer: parameters, lists of operations, norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/error/error.h"
#include "engine/runtime/team.h"
#include "multihead/transformer.h"
#include "nn/call_memory.h"
#include "nn/graph/call.h"
#include "nn/graph/graph.h"
#include "nn/kept.h"
#include "nn/parameters.h"
#include "rules/arena.h"

namespace multihead {

namespace nn {

// The parameters of a block, as views that a ParameterList binds.
struct BlockViews {
  MultiHeadAttentionWeights attention;
  ConstTensor norm1_weight, norm1_bias, norm2_weight, norm2_bias;
  ConstTensor linear1_weight, linear1_bias, gate_weight, gate_bias, linear2_weight, linear2_bias;
};

// A block as a list of operations, see block_list.cc, and its parameters except the attention's.
struct BlockList {
  BlockList(const TransformerBlockConfig& config, const BlockViews& views);

  Graph graph;
  LayerParameters parameters;
};

// A call of a block. Its operations get it as a LayerCall.
struct BlockCall : LayerCall {
  // x (batch, tokens, embed_dim). `call_options` must outlive the call.
  BlockCall(const TransformerBlock& called, const MultiHeadAttentionOptions& call_options,
            int64_t batch_, int64_t tokens_);

  const TransformerBlock& block;
  const BlockList& list;
  const MultiHeadAttentionOptions& options;
  MultiHeadAttentionCache* module_cache = nullptr;  // for a step
  Trace* trace = nullptr;
  Tensor attention_out = {};                             // optional
  MultiHeadAttentionActivations* activations = nullptr;  // of kept frames
  // For backward().
  const GradientBlock* to = nullptr;
  float* d_attended = nullptr;
};

// Memory for backward(), which all layers use in turn.
struct BlockGradients {
  Frame frame;
  float* d_attended = nullptr;  // (rows, embed_dim), of attention without a norm before it

  void lay_out(const BlockCall& call, float* d, rules::Arena& take);
};

// Backpropagates through a block whose values forward() has kept. `d.frame` has the gradient of the
// output, which becomes that of the input. Adds those of parameters to `gradients`, a block.
Status backward(BlockCall& call, const Frame& values, const BlockGradients& d, float* gradients,
                Context& context);

}  // namespace nn

// Operations on blocks for internal use. Failed allocations throw.
struct TransformerBlock::Internals {
  // Implements load_state_dict().
  static Status load(TransformerBlock& block, const StateDict& dict, ParameterNames names,
                     const nn::Loading& loading);
  // Adds the parameters of a block to `list`.
  static void list(const TransformerBlockConfig& config, const std::string& prefix,
                   ParameterNames names, nn::BlockViews& views, nn::ParameterList& list);
  // Takes the parameters that `views` were bound to. `memory` may be that of a Transformer.
  static Status take(TransformerBlock& block, const nn::BlockViews& views,
                     std::shared_ptr<Memory> memory, const nn::Loading& loading);

  // Implements forward(), or step() if there is a cache.
  static Status call(const TransformerBlock& block, const ConstTensor& x,
                     const MultiHeadAttentionOptions& options,
                     const TransformerBlockOutputs& outputs, MultiHeadAttentionCache* cache,
                     Trace* trace, Context& context);
  static const nn::BlockList& list_of(const TransformerBlock& block) { return *block.list_; }
  static const float* values_of(const TransformerBlock& block) {
    return block.memory_->parameters.values();
  }
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

// What a block keeps: the values of its list, and the attention's. A call is identified by the
// shape of x.
struct KeptBlock : KeptArrays<Dims> {
  MultiHeadAttentionActivations attention;

  int64_t bytes() const { return KeptArrays::bytes() + attention.bytes(); }
};

// Lists the parameters of one of the block's norms, if it has any: `name`.weight, and for a
// LayerNorm `name`.bias.
void list_norm(const std::string& name, const TransformerBlockConfig& config, ConstTensor& weight,
               ConstTensor& bias, ParameterList& list);

// A norm of the config's kind with these parameters, if it has any.
NormKind norm_kind(const TransformerBlockConfig& config);
NormParameters norm_parameters(const TransformerBlockConfig& config, const ConstTensor& weight,
                               const ConstTensor& bias);

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
