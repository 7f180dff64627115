// Transformer blocks and stacks of them: attention and an MLP, each added to what went in.
//
// Pre-norm (GPT-2, Llama): a = x + attention(norm1(x)), out = a + mlp(norm2(a)). Post-norm (Vaswani
// et al. 2017): a = norm1(x + attention(x)), out = norm2(a + mlp(a)). The MLP is
// linear2(activation(linear1(x))), or gated linear2(activation(linear_gate(x)) * linear1(x)).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "multihead/elementwise.h"
#include "multihead/export.h"
#include "multihead/multi_head_attention.h"

namespace MULTIHEAD_PUBLIC multihead {

enum class Norm : uint8_t { kNone, kLayerNorm, kRmsNorm };

struct TransformerBlockConfig {
  MultiHeadAttentionConfig attention = {};  // batch-first, of out_dim = embed_dim
  int64_t mlp_dim = 0;                      // width inside the MLP; 0 leaves it out
  Activation activation = Activation::kGelu;
  bool gated = false;
  bool mlp_bias = true;
  Norm norm = Norm::kLayerNorm;
  bool norm_first = true;
  float norm_eps = 1e-5F;
};

// Under which names parameters are read.
enum class ParameterNames : uint8_t {
  // torch.nn.TransformerEncoderLayer: self_attn.* (as MultiHeadAttention has them), linear1,
  // linear2 and norm1, norm2 .weight and .bias; here also linear_gate. A stack has them under
  // layers.N., and embedding.weight, position.weight, norm.weight, norm.bias, output.weight.
  kTorch,
  // GPT-2's own: h.N.ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj, and wte, wpe,
  // ln_f,
  // lm_head, with or without "transformer." in front; matrices are (in, out) as its Conv1D has
  // them.
  // The buffers attn.bias and attn.masked_bias, and the lm_head of a tied model, are passed over.
  kGpt2,
};

struct TransformerBlockOutputs {
  Tensor out = {};            // (B, N, embed_dim)
  Tensor attention_out = {};  // what attention adds, (B, N, embed_dim); optional
};

class TransformerBlock {
 public:
  [[nodiscard]] static Status create(const TransformerBlockConfig& config, TransformerBlock& block);
  // As MultiHeadAttention::load_state_dict().
  [[nodiscard]] Status load_state_dict(const StateDict& dict,
                                       ParameterNames names = ParameterNames::kTorch);
  [[nodiscard]] Status state_dict(StateDict& dict) const;

  // x (B, N, embed_dim), without gaps; `options` and `trace` are those of the attention.
  [[nodiscard]] Status forward(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                               const TransformerBlockOutputs& outputs, Trace* trace,
                               Context& context) const;
  // The next tokens, causally; see MultiHeadAttention::step().
  [[nodiscard]] Status step(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                            const TransformerBlockOutputs& outputs, MultiHeadAttentionCache& cache,
                            Trace* trace, Context& context) const;

  const TransformerBlockConfig& config() const { return config_; }
  const MultiHeadAttention& attention() const { return attention_; }

 private:
  friend class Transformer;
  static Status create_or_throw(const TransformerBlockConfig& config, TransformerBlock& block);
  Status load_or_throw(const StateDict& dict, ParameterNames names);
  struct Weights {
    ConstTensor norm1_weight, norm1_bias, norm2_weight, norm2_bias;
    ConstTensor linear1_weight, linear1_bias, gate_weight, gate_bias, linear2_weight, linear2_bias;
  };
  struct Scratch;

  void add_parameters(nn::Parameters& parameters, const std::string& prefix,
                      ParameterNames names) const;
  Status take_weights(const nn::Parameters& parameters, const std::string& prefix,
                      ParameterNames names);
  Status call(const ConstTensor& x, const MultiHeadAttentionOptions& options,
              const TransformerBlockOutputs& outputs, MultiHeadAttentionCache* cache, Trace* trace,
              Context& context) const;
  Status run(const ConstTensor& x, const MultiHeadAttentionOptions& options,
             const TransformerBlockOutputs& outputs, MultiHeadAttentionCache* cache, Trace* trace,
             const Scratch& scratch, Context& context) const;

  TransformerBlockConfig config_ = {};
  MultiHeadAttention attention_ = {};
  Weights weights_ = {};
  std::shared_ptr<const nn::Parameters> owned_;
};

struct TransformerConfig {
  TransformerBlockConfig block = {};
  int64_t num_layers = 0;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // of learned position embeddings; 0 has none
  bool final_norm = true;     // where the blocks have norms
  bool tied_output = false;   // the embedding is the output's weight too
  bool causal = true;
};

struct TransformerOutputs {
  Tensor logits = {};            // (B, N, vocab_size); optional
  Tensor hidden = {};            // after each layer, (num_layers, B, N, embed_dim); optional
  std::span<Trace> traces = {};  // of each layer's attention, or none
};

class TransformerCache {
 public:
  int64_t length() const { return layers().empty() ? 0 : layers_[0].length(); }
  int64_t bytes() const;  // of the keys and values of all layers
  // Forgets the tokens from `length` on. Errors: kOption; nothing is forgotten then.
  [[nodiscard]] Status rewind(int64_t length);

 private:
  friend class Transformer;
  std::span<MultiHeadAttentionCache> layers() { return {layers_.get(), count()}; }
  std::span<const MultiHeadAttentionCache> layers() const { return {layers_.get(), count()}; }
  // None once the cache was moved from.
  size_t count() const { return layers_ ? count_ : 0; }

  std::unique_ptr<MultiHeadAttentionCache[]> layers_;
  size_t count_ = 0;
};

class Transformer {
 public:
  [[nodiscard]] static Status create(const TransformerConfig& config, Transformer& model);
  // One error names all that is wrong, over all layers.
  [[nodiscard]] Status load_state_dict(const StateDict& dict,
                                       ParameterNames names = ParameterNames::kTorch);
  // Under the names that were loaded.
  [[nodiscard]] Status state_dict(StateDict& dict) const;

  // tokens (batch * N), row-major, each from 0 to vocab_size - 1. `options` apply to every layer;
  // their causal is the config's. Errors: kShape, kOption (also more tokens than max_positions),
  // kMemory. Nothing is written then, but after kMemory some of the outputs may be.
  [[nodiscard]] Status forward(std::span<const int32_t> tokens, int64_t batch,
                               const MultiHeadAttentionOptions& options,
                               const TransformerOutputs& outputs, Context& context) const;

  // For step(): batch, capacity, layout, type and pages of `config` are read.
  [[nodiscard]] Status create_cache(const KVCacheConfig& config, TransformerCache& cache) const;
  // The next tokens of every batch entry. The cache is what it was where there is an error.
  [[nodiscard]] Status step(std::span<const int32_t> tokens,
                            const MultiHeadAttentionOptions& options,
                            const TransformerOutputs& outputs, TransformerCache& cache,
                            Context& context) const;

  const TransformerConfig& config() const { return config_; }
  const TransformerBlock& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }

 private:
  static Status create_or_throw(const TransformerConfig& config, Transformer& model);
  Status load_or_throw(const StateDict& dict, ParameterNames names);
  Status run(std::span<const int32_t> tokens, int64_t batch,
             const MultiHeadAttentionOptions& options, const TransformerOutputs& outputs,
             TransformerCache* cache, Context& context) const;
  std::span<TransformerBlock> layers() { return {layers_.get(), count()}; }
  std::span<const TransformerBlock> layers() const { return {layers_.get(), count()}; }
  size_t count() const { return layers_ ? static_cast<size_t>(config_.num_layers) : 0; }

  TransformerConfig config_ = {};
  std::unique_ptr<TransformerBlock[]> layers_;
  ConstTensor embedding_ = {}, position_ = {}, norm_weight_ = {}, norm_bias_ = {}, output_ = {};
  std::shared_ptr<const nn::Parameters> owned_;
};

// The config of a GPT-2 model whose state dict this is: all but the number of heads stands in its
// shapes. Errors: kShape, naming the tensor that is missing.
[[nodiscard]] Status gpt2_config(const StateDict& dict, int64_t num_heads,
                                 TransformerConfig& config);

}  // namespace multihead
