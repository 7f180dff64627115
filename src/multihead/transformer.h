/// \file
/// Transformers and their blocks: attention and an MLP, each with a residual connection.
///
/// Pre-norm (GPT-2, Llama): a = x + attention(norm1(x)), out = a + mlp(norm2(a)). Post-norm
/// (Vaswani et al. 2017): a = norm1(x + attention(x)), out = norm2(a + mlp(a)). The MLP is
/// linear2(activation(linear1(x))), or gated linear2(activation(linear_gate(x)) * linear1(x)).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "multihead/activations.h"
#include "multihead/elementwise.h"
#include "multihead/export.h"
#include "multihead/multi_head_attention.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Normalizations in a block.
enum class Norm : uint8_t {
  kNone,       ///< no normalization
  kLayerNorm,  ///< layer_norm()
  kRmsNorm,    ///< rms_norm()
};

/// The shape of a block.
struct TransformerBlockConfig {
  MultiHeadAttentionConfig attention = {};    ///< batch-first; kdim, vdim and out_dim are embed_dim
  int64_t mlp_dim = 0;                        ///< width of the MLP's hidden layer; 0 for no MLP
  Activation activation = Activation::kGelu;  ///< activation of the MLP
  bool gated = false;                         ///< adds linear_gate to the MLP
  bool mlp_bias = true;                       ///< true if the MLP's matrices have biases
  Norm norm = Norm::kLayerNorm;               ///< kind of normalization
  bool norm_first = true;                     ///< true: pre-norm; false: post-norm
  float norm_eps = 1e-5F;                     ///< eps of the norms; finite, 0 or more
  bool norm_affine = true;  ///< false: norms have no parameters. PyTorch's elementwise_affine
  /// Probability of dropout of the outputs of attention and MLP before they are added, in training.
  /// In GPT-2's code: resid_pdrop.
  float residual_dropout = 0.0F;
};

/// The names of parameters in a state dict.
enum class ParameterNames : uint8_t {
  /// Names of torch.nn.TransformerEncoderLayer: self_attn.* (see MultiHeadAttention), and linear1,
  /// linear2, norm1 and norm2, each with .weight and .bias; also linear_gate, which PyTorch does
  /// not have. In a Transformer these are under layers.N., besides embedding.weight,
  /// position.weight, norm.weight, norm.bias and output.weight.
  kTorch,
  /// Names of GPT-2: h.N.ln_1, attn.c_attn, attn.c_proj, ln_2, mlp.c_fc, mlp.c_proj, and wte, wpe,
  /// ln_f and lm_head, with or without "transformer." in front. Matrices are (in, out), as in its
  /// Conv1D. The buffers attn.bias and attn.masked_bias are ignored, and so is the lm_head of a
  /// tied model.
  kGpt2,
};

/// Outputs of TransformerBlock::forward() and step().
struct TransformerBlockOutputs {
  Tensor out = {};            ///< (B, N, embed_dim)
  Tensor attention_out = {};  ///< output of attention before the sum; (B, N, embed_dim), optional
  /// For backward(); not for steps. `out` may then not overlap x.
  TransformerBlockActivations* activations = nullptr;
};

/// A transformer block: attention and an MLP, each with a residual connection. Copies share the
/// parameters.
class TransformerBlock : public ModuleBase {
 public:
  /// Makes a block without parameters. Errors: kOption, kMemory; `block` is unchanged.
  [[nodiscard]] static Status create(const TransformerBlockConfig& config, TransformerBlock& block);
  /// See MultiHeadAttention::load_state_dict(), errors included; kOption also for unknown names.
  [[nodiscard]] Status load_state_dict(const StateDict& dict,
                                       ParameterNames names = ParameterNames::kTorch);

  /// x (B, N, embed_dim), contiguous. `options` and `trace` are the attention's. Errors: kShape,
  /// kOption, kMemory. Nothing is written on an error, except that kMemory may leave some outputs
  /// written.
  [[nodiscard]] Status forward(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                               const TransformerBlockOutputs& outputs, Trace* trace,
                               Context& context) const;
  /// Given the gradient d_out (B, N, embed_dim), contiguous, of a loss with respect to forward()'s
  /// output, computes the loss's gradients. The gradient with respect to x is written to d_x: same
  /// shape, contiguous, optional, may be d_out. The gradients of the parameters are added to
  /// `gradients`: num_parameters() floats, see named(). x and `options` must be the same as in
  /// forward(), which has filled `activations`. Errors: kShape, kOption (also for activations of
  /// another call), kMemory. Nothing is written on an error, except that kMemory may leave some
  /// gradients written.
  [[nodiscard]] Status backward(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                                const ConstTensor& d_out,
                                const TransformerBlockActivations& activations, const Tensor& d_x,
                                std::span<float> gradients, Context& context) const;

  /// Processes the next tokens, with causal attention over the cache; see
  /// MultiHeadAttention::step(), errors included.
  [[nodiscard]] Status step(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                            const TransformerBlockOutputs& outputs, MultiHeadAttentionCache& cache,
                            Trace* trace, Context& context) const;

  /// The config given to create(); zeros are replaced by their defaults.
  const TransformerBlockConfig& config() const { return config_; }
  /// The block's attention module.
  const MultiHeadAttention& attention() const { return attention_; }

  struct Internals;  ///< for the library's own use

 private:
  friend class Transformer;
  struct Weights {
    ConstTensor norm1_weight, norm1_bias, norm2_weight, norm2_bias;
    ConstTensor linear1_weight, linear1_bias, gate_weight, gate_bias, linear2_weight, linear2_bias;
  };

  TransformerBlockConfig config_ = {};
  MultiHeadAttention attention_ = {};
  Weights weights_ = {};  // views of the parameters
};

/// The shape of a model.
struct TransformerConfig {
  TransformerBlockConfig block = {};  ///< config of every layer
  int64_t num_layers = 0;             ///< number of blocks; 0 or more
  int64_t vocab_size = 0;             ///< number of token ids; 1 or more
  int64_t max_positions = 0;          ///< number of learned position embeddings; 0 for none
  bool final_norm = true;             ///< a norm after the last layer, if the blocks have norms
  bool tied_output = false;           ///< the embedding is also the weight of the output
  bool causal = true;                 ///< false: every token sees every other
  /// Number of predictions per position, each with its own matrix: output.weight has num_readouts *
  /// vocab_size rows. More than 1 contradicts tied_output.
  int64_t num_readouts = 1;
  /// Probability of dropout of the embeddings, in training. In GPT-2's code: embd_pdrop.
  float embedding_dropout = 0.0F;
};

/// Initial parameters: normally distributed numbers from a seed, the same bits in every build.
/// Biases and sinks are 0, gains of norms 1. The standard deviation of a matrix's elements is a
/// factor times 1/sqrt(columns); embeddings and positions are matrices of (vocab_size or
/// max_positions, embed_dim).
struct Initialization {
  uint64_t seed = 0;       ///< seed of all numbers
  float embedding = 0.5F;  ///< factor of embeddings and positions
  float weight = 1.0F;     ///< factor of all other matrices, and of appended keys and values
  float residual = 0.7F;   ///< factor of matrices whose product is added to the residual stream
  float output = 0.5F;     ///< factor of the matrix that computes logits
};

/// Outputs of Transformer::forward() and step().
struct TransformerOutputs {
  Tensor logits = {};            ///< (B, N, num_readouts * vocab_size); optional
  Tensor hidden = {};            ///< output of each layer, (num_layers, B, N, embed_dim); optional
  std::span<Trace> traces = {};  ///< one for the attention of each layer; optional
  TransformerActivations* activations = nullptr;  ///< for backward(); not for steps
};

/// The keys and values of all layers for Transformer::step(); see Transformer::create_cache().
class TransformerCache {
 public:
  /// Number of tokens so far.
  int64_t length() const { return layers().empty() ? 0 : layers_[0].length(); }
  int64_t bytes() const;  ///< bytes of the keys and values of all layers
  /// Truncates the cache to its first `length` tokens. Errors: kOption; the cache is unchanged.
  [[nodiscard]] Status truncate(int64_t length);

 private:
  friend class Transformer;
  std::span<MultiHeadAttentionCache> layers() { return {layers_.get(), count()}; }
  std::span<const MultiHeadAttentionCache> layers() const { return {layers_.get(), count()}; }
  // 0 after the cache was moved from.
  size_t count() const { return layers_ ? count_ : 0; }

  std::unique_ptr<MultiHeadAttentionCache[]> layers_;
  size_t count_ = 0;
};

/// A transformer, from tokens to logits. Copies share the parameters, until one of them loads or
/// initializes other parameters.
class Transformer : public ModuleBase {
 public:
  /// Makes a model without parameters. Errors: kOption, kMemory; `model` is unchanged.
  [[nodiscard]] static Status create(const TransformerConfig& config, Transformer& model);
  /// Loads the parameters of all layers. One error names every wrong tensor.
  [[nodiscard]] Status load_state_dict(const StateDict& dict,
                                       ParameterNames names = ParameterNames::kTorch);
  /// Creates new parameters instead of loading them. Errors: kOption, kMemory; the model is
  /// unchanged.
  [[nodiscard]] Status initialize(const Initialization& initialization,
                                  ParameterNames names = ParameterNames::kTorch);

  /// tokens (batch * N), row-major, each from 0 to vocab_size - 1. `options` apply to every layer,
  /// with two exceptions: the config sets causal, and head_scales may have num_layers * H factors,
  /// beginning with layer 0. Errors: kShape, kOption (also for more tokens than max_positions),
  /// kMemory. Nothing is written on an error, except that kMemory may leave some outputs written.
  [[nodiscard]] Status forward(std::span<const int32_t> tokens, int64_t batch,
                               const MultiHeadAttentionOptions& options,
                               const TransformerOutputs& outputs, Context& context) const;

  /// Given the gradient d_logits, contiguous, of a loss with respect to forward()'s logits, adds
  /// the loss's gradients with respect to all parameters to `gradients`: num_parameters() floats,
  /// see named(). The other arguments must be the same as in forward(), which has filled
  /// `activations`. Errors: kShape, kOption (also activations of another call), kMemory. Nothing is
  /// written on an error, except that kMemory may leave some gradients written.
  [[nodiscard]] Status backward(std::span<const int32_t> tokens, int64_t batch,
                                const MultiHeadAttentionOptions& options,
                                const ConstTensor& d_logits, TransformerActivations& activations,
                                std::span<float> gradients, Context& context) const;

  /// Creates a cache for step(). Reads batch, capacity, layout, type and pages of `config`. Errors:
  /// as MultiHeadAttention::create_cache().
  [[nodiscard]] Status create_cache(const KVCacheConfig& config, TransformerCache& cache) const;
  /// Processes the next tokens of every batch entry: `tokens` has B * n elements, where B is the
  /// batch of the cache. Errors: as forward() and MultiHeadAttention::step(); the cache is
  /// unchanged.
  [[nodiscard]] Status step(std::span<const int32_t> tokens,
                            const MultiHeadAttentionOptions& options,
                            const TransformerOutputs& outputs, TransformerCache& cache,
                            Context& context) const;

  /// The config given to create(); zeros are replaced by their defaults.
  const TransformerConfig& config() const { return config_; }
  /// A block; index is from 0 to less than num_layers.
  const TransformerBlock& layer(int64_t index) const {
    return layers()[static_cast<size_t>(index)];
  }

  struct Internals;  ///< for the library's own use

 private:
  std::span<TransformerBlock> layers() { return {layers_.get(), count()}; }
  std::span<const TransformerBlock> layers() const { return {layers_.get(), count()}; }
  size_t count() const { return layers_ ? static_cast<size_t>(config_.num_layers) : 0; }

  struct Weights {
    ConstTensor embedding, position, norm_weight, norm_bias, output;
  };

  TransformerConfig config_ = {};
  // Copies share the layers. Loading parameters replaces the layers as a whole.
  std::shared_ptr<TransformerBlock[]> layers_;
  Weights weights_ = {};

  friend class Trainer;
  // Recomputes all values derived from the parameters.
  void parameters_changed();
};

/// Derives the config of a GPT-2 model from the shapes of its state dict; only the number of heads
/// must be given. Errors: kShape, naming the missing tensor.
[[nodiscard]] Status gpt2_config(const StateDict& dict, int64_t num_heads,
                                 TransformerConfig& config);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
