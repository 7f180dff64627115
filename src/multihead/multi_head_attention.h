/// \file
/// Multi-head attention as a module: project, split into heads, attend, merge, project.
///
/// Definition: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2. Parameters and options follow
/// torch.nn.MultiheadAttention: the same names, the same layout (rows are outputs, y = x W^T + b).
/// Three things differ. Batch-first is the default. Causal is an instruction, not a hint. The
/// merged heads of a query that sees no key are 0, never NaN.
#pragma once

#include <cstdint>
#include <span>

#include "multihead/activations.h"
#include "multihead/attention.h"
#include "multihead/export.h"
#include "multihead/kv_cache.h"
#include "multihead/state_dict.h"
#include "multihead/trace.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// The shape of a module: its widths, its heads and which parameters it has.
struct MultiHeadAttentionConfig {
  int64_t embed_dim = 0;  ///< width of a query token
  int64_t num_heads = 0;  ///< query heads, H; 1 or more
  /// Width of a query and key head. 0 takes embed_dim / num_heads; num_heads must then divide
  /// embed_dim.
  int64_t head_dim = 0;
  int64_t num_kv_heads = 0;  ///< divides num_heads (arXiv:2305.13245); 0 takes num_heads
  int64_t value_dim = 0;     ///< width of a value head; 0 takes head_dim - rope_head_dim
  int64_t kdim = 0;          ///< width of a key token; 0 takes embed_dim
  int64_t vdim = 0;          ///< width of a value token; 0 takes embed_dim
  int64_t out_dim = 0;       ///< width of an output token; 0 takes embed_dim
  bool bias = true;          ///< adds biases to all four projections
  bool out_proj = true;      ///< false: the merged heads are the output
  /// Appends the key bias_k and the value bias_v, visible to all queries.
  bool add_bias_kv = false;
  bool add_zero_attn = false;  ///< appends a key and a value of zeros, visible to all queries
  bool batch_first = true;     ///< false: tensors are (N, B, width)

  /// Latent attention (MLA, arXiv:2405.04434, section 2.1), enabled if kv_latent_dim is not 0. Keys
  /// and values of all heads of a token are computed from one normalized latent of width
  /// kv_latent_dim, except the last rope_head_dim numbers of each key: all heads share this vector.
  /// RoPE rotates only this vector and the last rope_head_dim numbers of each query head. A cache
  /// keeps kv_latent_dim + rope_head_dim numbers per token. Key and value are one input of width
  /// embed_dim. kOption errors: num_kv_heads other than num_heads, appended keys, qk_norm, and RoPE
  /// with a rope_head_dim of 0.
  int64_t kv_latent_dim = 0;      ///< 0: no latent attention. DeepSeek's kv_lora_rank
  int64_t q_latent_dim = 0;       ///< 0: queries come from the tokens. DeepSeek's q_lora_rank
  int64_t rope_head_dim = 0;      ///< part of head_dim. DeepSeek's qk_rope_head_dim
  float latent_norm_eps = 1e-6F;  ///< eps of the RMS norms of both latents

  /// Properties of the model. A call's option of the same name replaces them.
  bool sinks = false;         ///< parameter `sinks`, a logit per head
  bool qk_norm = false;       ///< parameters `q_norm.weight`, `k_norm.weight`
  float qk_norm_eps = 1e-6F;  ///< QkNorm::eps
  float softcap = 0.0F;       ///< bound on the scores; 0 is none
  Window window = {};         ///< without an alignment, which each call gives
  Rope rope = {};             ///< without positions, which each call gives
  /// Probability of dropout of the weights, from 0 to less than 1; applied if
  /// MultiHeadAttentionOptions::training is true.
  float dropout = 0.0F;
  float out_dropout = 0.0F;  ///< probability of dropout after the output projection, in training
};

/// The parameters of a module, as views of the caller's memory, which must outlive the calls that
/// use them. Missing optional tensors are left out of the computation, even if `bias` of the config
/// is true. The gradients of weights have the same shapes; see MultiHeadAttentionGradients.
template <class View>
struct BasicMultiHeadAttentionWeights {
  View q_proj = {};    ///< (H * head_dim, embed_dim)
  View k_proj = {};    ///< (H_kv * head_dim, kdim)
  View v_proj = {};    ///< (H_kv * value_dim, vdim)
  View q_bias = {};    ///< (H * head_dim), optional
  View k_bias = {};    ///< (H_kv * head_dim), optional
  View v_bias = {};    ///< (H_kv * value_dim), optional
  View out_proj = {};  ///< (out_dim, H * value_dim)
  View out_bias = {};  ///< (out_dim), optional
  View bias_k = {};    ///< (H_kv * head_dim), with add_bias_kv
  View bias_v = {};    ///< (H_kv * value_dim), with add_bias_kv
  View sinks = {};     ///< (H)
  View q_norm = {};    ///< (head_dim), with qk_norm
  View k_norm = {};    ///< (head_dim), with qk_norm

  // Latent attention: the kv_ tensors replace k_proj, v_proj and the biases of q, k and v. With
  // q_latent_dim the q_a_ and q_b_ tensors replace q_proj. Biases and norms are optional.
  View q_a_proj = {};   ///< (q_latent_dim, embed_dim)
  View q_a_bias = {};   ///< (q_latent_dim)
  View q_a_norm = {};   ///< (q_latent_dim)
  View q_b_proj = {};   ///< (H * head_dim, q_latent_dim)
  View kv_a_proj = {};  ///< (kv_latent_dim + rope_head_dim, embed_dim)
  View kv_a_bias = {};  ///< (kv_latent_dim + rope_head_dim)
  View kv_a_norm = {};  ///< (kv_latent_dim)
  /// (H * (qk_nope_head_dim + value_dim), kv_latent_dim) with qk_nope_head_dim = head_dim -
  /// rope_head_dim. For each head: the rows of its key, then the rows of its value
  View kv_b_proj = {};
};

/// Read-only views of a module's parameters.
using MultiHeadAttentionWeights = BasicMultiHeadAttentionWeights<ConstTensor>;

/// Inputs of MultiHeadAttention::forward(). In an unbatched call, no shape has the axis B, not even
/// the key padding's.
struct MultiHeadAttentionInputs {
  ConstTensor query = {};  ///< (B, N_q, embed_dim), or (N_q, B, ...), or unbatched (N_q, ...)
  ConstTensor key = {};    ///< (B, N_k, kdim) likewise; default: the query
  ConstTensor value = {};  ///< (B, N_k, vdim) likewise; default: the key. Latent attention: the key
};

/// Interventions on single heads, to teach about a model or to study it.
struct HeadInterventions {
  std::span<const float> head_scales = {};  ///< (H): factor on each head's output; 0 mutes the head
  float temperature = 1.0F;                 ///< divides the scale; more than 0
};

/// Options of MultiHeadAttention::forward(), backward() and step().
struct MultiHeadAttentionOptions {
  /// Options of attention(). They apply to the given keys; appended keys are visible to every
  /// query. mask: true = MAY attend, (N_q, N_k) or (B, H, N_q, N_k). The scale defaults to
  /// 1/sqrt(head_dim). alibi_slopes with appended keys are a kOption error.
  AttentionOptions attention = {};
  /// attn_mask of nn.MultiheadAttention: true = may NOT attend. (N_q, N_k), (B, H, N_q, N_k), in
  /// which extents may be 1 to share, or PyTorch's (B * H, N_q, N_k).
  ConstBoolTensor attn_mask_blocked = {};
  /// key_padding_mask of nn.MultiheadAttention: true = may NOT be attended to. (B, N_k).
  ConstBoolTensor key_padding_blocked = {};
  ConstTensor key_padding_bias = {};  ///< (B, N_k), added to the scores; -inf hides
  bool training = false;              ///< applies config.dropout, with dropout_seed
  uint64_t dropout_seed = 0;          ///< of dropout and out_dropout
  HeadInterventions heads = {};       ///< changes to single heads
};

/// Outputs of MultiHeadAttention::forward() and step(). Every output but `out` is optional. N is
/// N_k plus the number of appended keys.
struct MultiHeadAttentionOutputs {
  Tensor out = {};           ///< like the query, (B, N_q, out_dim)
  Tensor weights = {};       ///< (B, H, N_q, N), before dropout; (H, N_q, N) where unbatched
  Tensor mean_weights = {};  ///< over the heads, (B, N_q, N) or (N_q, N): average_attn_weights
  /// For backward(); not for steps.
  MultiHeadAttentionActivations* activations = nullptr;
};

/// Gradients of MultiHeadAttention::backward(), all optional, and contiguous in their last axis.
/// Input gradients are overwritten. Weight gradients are added to, so they accumulate over calls.
/// The gradient of a bias may be requested only if the bias is given.
struct MultiHeadAttentionGradients {
  /// Shapes as the inputs. If an input is not given and defaults to another input, its gradient is
  /// added to the other input's gradient: in self-attention, d_query is the sum of all three.
  Tensor d_query = {};
  Tensor d_key = {};                                    ///< like the key; see d_query
  Tensor d_value = {};                                  ///< like the value; see d_query
  BasicMultiHeadAttentionWeights<Tensor> weights = {};  ///< in the shapes of the parameters
};

/// The keys and values of a module's tokens so far; see MultiHeadAttention::create_cache().
class MultiHeadAttentionCache {
 public:
  /// Tokens of a batch entry; 0 if there is no such entry.
  int64_t length(int64_t batch = 0) const;
  /// Truncates every batch entry to its first `length` tokens. Errors: kOption (`length` is
  /// negative or more than length(), or not 0 and a ring has overwritten the token at `length`);
  /// the cache is unchanged.
  [[nodiscard]] Status truncate(int64_t length);
  /// The keys and values themselves.
  const KVCache& kv() const { return kv_; }

 private:
  friend class MultiHeadAttention;
  KVCache kv_;
  uint64_t layer_ = 0;    // of the module that made it
  uint64_t version_ = 0;  // of the weights that computed the tokens
};

/// A multi-head attention module: projections, attention, output projection. Copies share the
/// parameters.
class MultiHeadAttention : public ModuleBase {
 public:
  /// A module that refuses every call until create() fills it.
  MultiHeadAttention() = default;

  /// Makes a module without weights. Errors: kOption; `module` is unchanged.
  [[nodiscard]] static Status create(const MultiHeadAttentionConfig& config,
                                     MultiHeadAttention& module);

  /// Copies all parameters; copies of the module share them. Names and shapes:
  /// - in_proj_weight (rows of q | k | v, embed_dim), or separately q_proj_weight, k_proj_weight,
  ///   v_proj_weight, as they must be if kdim or vdim differ
  /// - in_proj_bias (q | k | v)
  /// - bias_k, bias_v (1, 1, width)
  /// - out_proj.weight, out_proj.bias
  /// - sinks (H)
  /// - q_norm.weight, k_norm.weight (head_dim)
  ///
  /// Latent attention has the names of DeepSeek's checkpoints (whose attention_bias is `bias`, and
  /// whose RoPE is Rope::Style::kInterleaved) and the shapes of MultiHeadAttentionWeights:
  /// - q_proj.weight, or with q_latent_dim q_a_proj.weight, q_a_proj.bias, q_a_layernorm.weight,
  ///   q_b_proj.weight
  /// - kv_a_proj_with_mqa.weight, kv_a_proj_with_mqa.bias, kv_a_layernorm.weight, kv_b_proj.weight
  /// - o_proj.weight, o_proj.bias
  /// - sinks
  ///
  /// Errors: kShape, one error that names every missing, unexpected and misshaped tensor; kMemory.
  /// The weights are unchanged.
  [[nodiscard]] Status load_state_dict(const StateDict& dict);
  /// Returns the views of named() as MultiHeadAttentionGradients. Errors: as named().
  [[nodiscard]] Status gradients_in(std::span<float> block,
                                    BasicMultiHeadAttentionWeights<Tensor>& gradients) const;
  /// Uses the caller's memory through views instead of copying it. Exception: step() of latent
  /// attention reads a transposed copy of the rows of kv_b_proj that compute keys. Call this again
  /// after changing them. Errors: kShape, kOption, kMemory; the weights are unchanged.
  [[nodiscard]] Status use_weights(const MultiHeadAttentionWeights& weights);

  /// `trace`, if not null, receives the steps that it names; results are the same with and without
  /// it. Errors: kShape, kOption, kMemory. Nothing is written on an error, except that kMemory may
  /// leave some outputs written.
  [[nodiscard]] Status forward(const MultiHeadAttentionInputs& inputs,
                               const MultiHeadAttentionOptions& options,
                               const MultiHeadAttentionOutputs& outputs, Trace* trace,
                               Context& context) const;

  /// Given the gradient d_out (like `out`) of a loss with respect to forward()'s output, computes
  /// the loss's gradients. `inputs` and `options` must be the same as in forward(), which has
  /// filled `activations`; if `activations` is null, forward() is computed again, without its
  /// output projection. Results are bit-identical with and without activations, and for any number
  /// of threads. Errors: kShape, kOption (also for the gradient of a parameter that the module does
  /// not have, and for activations of another call or of earlier weights), kMemory. Nothing is
  /// written on an error, except that kMemory may leave some gradients written.
  [[nodiscard]] Status backward(const MultiHeadAttentionInputs& inputs,
                                const MultiHeadAttentionOptions& options, const ConstTensor& d_out,
                                const MultiHeadAttentionActivations* activations,
                                const MultiHeadAttentionGradients& gradients,
                                Context& context) const;

  /// A cache for step() of this module and its copies. Its tokens belong to the weights that
  /// computed them: after load_state_dict(), use_weights() or an update of a Trainer, step()
  /// refuses the cache until it is truncated to none. Reads `batch`, `capacity`, layout, type and
  /// pages of `config`. Errors: kOption (also if the module appends keys, if kdim or vdim is not
  /// embed_dim, or if a ring's capacity does not exceed the config's window.left), kMemory.
  [[nodiscard]] Status create_cache(const KVCacheConfig& config,
                                    MultiHeadAttentionCache& cache) const;

  /// Causal self-attention of the next n tokens x (B, n, embed_dim). Each row equals the
  /// corresponding row of one causal forward() over all tokens so far. Latent attention uses the
  /// absorbed form: it attends to the cached latents and expands no keys or values. mask and bias
  /// cover all tokens, including the new ones. Errors: kOption (also for causal, window, rope,
  /// kv_lengths, attn_mask_blocked and key padding in `options`, for another module's cache, for
  /// tokens of earlier weights, and for more tokens than the cache has room for), kShape, kMemory.
  /// The cache is unchanged, except that kMemory may make a ring lose tokens that are outside every
  /// window.
  [[nodiscard]] Status step(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                            const MultiHeadAttentionOutputs& outputs,
                            MultiHeadAttentionCache& cache, Trace* trace, Context& context) const;

  /// The config given to create(); zeros are replaced by their defaults.
  const MultiHeadAttentionConfig& config() const { return config_; }
  /// Views of the parameters, also of loaded parameters.
  const MultiHeadAttentionWeights& weights() const { return weights_; }

  struct Internals;  ///< for the library's own use

 private:
  MultiHeadAttentionConfig config_ = {};
  MultiHeadAttentionWeights weights_ = {};
  // Recomputes all values derived from the weights, for this module and its copies.
  void weights_changed();
  friend class Transformer;
  friend class TransformerBlock;

  uint64_t id_ = 0;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
