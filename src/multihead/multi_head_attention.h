// Multi-head attention as a module: project, split into heads, attend, merge, project.
//
// Definition: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2. Parameters, their names and
// layout (rows are outputs, y = x W^T + b) and what each option does are those of
// torch.nn.MultiheadAttention, but for three things: batch-first is the default; causal is an
// instruction, not a hint; a query that sees no key has merged heads of 0, never NaN.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "multihead/attention.h"
#include "multihead/export.h"
#include "multihead/kv_cache.h"
#include "multihead/state_dict.h"
#include "multihead/trace.h"

namespace multihead::engine {
class Buffer;
}
namespace multihead::nn {
class Parameters;
}

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

struct MultiHeadAttentionConfig {
  int64_t embed_dim = 0;  // width of a query token
  int64_t num_heads = 0;
  // Width of a query and key head; 0 takes embed_dim / num_heads, which must divide evenly then.
  int64_t head_dim = 0;
  int64_t num_kv_heads = 0;    // divides num_heads (arXiv:2305.13245); 0 takes num_heads
  int64_t value_dim = 0;       // width of a value head; 0 takes head_dim less rope_head_dim
  int64_t kdim = 0;            // width of a key token; 0 takes embed_dim
  int64_t vdim = 0;            // width of a value token; 0 takes embed_dim
  int64_t out_dim = 0;         // width of an output token; 0 takes embed_dim
  bool bias = true;            // of all four projections
  bool out_proj = true;        // false: the merged heads are the output
  bool add_bias_kv = false;    // bias_k, bias_v: one more key and value, visible to all
  bool add_zero_attn = false;  // one more key and value of zeros behind them, likewise
  bool batch_first = true;     // false: tensors are (N, B, width)

  // Latent attention (MLA, arXiv:2405.04434, section 2.1), where kv_latent_dim is not 0: a token's
  // keys and values of all heads are made of one normalised latent of that width, but for the last
  // rope_head_dim numbers of each key, which all heads share. RoPE turns those and the last
  // rope_head_dim of each query head, nothing else. A cache keeps kv_latent_dim + rope_head_dim
  // numbers a token. Key and value are one input of width embed_dim; num_kv_heads other than
  // num_heads, appended keys, qk_norm and RoPE without rope_head_dim are kOption errors.
  int64_t kv_latent_dim = 0;      // 0: none. DeepSeek's kv_lora_rank
  int64_t q_latent_dim = 0;       // queries are made of a latent, too; 0: not. q_lora_rank
  int64_t rope_head_dim = 0;      // counted in head_dim. qk_rope_head_dim
  float latent_norm_eps = 1e-6F;  // of the RMS norm of either latent

  // What a model has for good. An option of the same name that a call gives replaces it.
  bool sinks = false;    // parameter `sinks`, a logit per head
  bool qk_norm = false;  // parameters `q_norm.weight`, `k_norm.weight`
  float qk_norm_eps = 1e-6F;
  float softcap = 0.0F;
  Window window = {};    // without an alignment
  Rope rope = {};        // without positions
  float dropout = 0.0F;  // probability; read only where a call is training
};

// Views of the caller's memory, which must outlive the calls that use them. Those that are optional
// are not there where they are not given, whatever the config says of bias.
struct MultiHeadAttentionWeights {
  ConstTensor q_proj = {};                            // (H * head_dim, embed_dim)
  ConstTensor k_proj = {};                            // (H_kv * head_dim, kdim)
  ConstTensor v_proj = {};                            // (H_kv * value_dim, vdim)
  ConstTensor q_bias = {}, k_bias = {}, v_bias = {};  // one for each row of those; optional
  ConstTensor out_proj = {};                          // (out_dim, H * value_dim)
  ConstTensor out_bias = {};                          // (out_dim), optional
  ConstTensor bias_k = {}, bias_v = {};  // (H_kv * head_dim), (H_kv * value_dim): add_bias_kv
  ConstTensor sinks = {};                // (H)
  ConstTensor q_norm = {}, k_norm = {};  // (head_dim)

  // Of latent attention, in place of k_proj, v_proj and all biases of q, k, v; with q_latent_dim
  // the q_ tensors stand in place of q_proj. Biases and norms are optional.
  ConstTensor q_a_proj = {};                 // (q_latent_dim, embed_dim)
  ConstTensor q_a_bias = {}, q_a_norm = {};  // (q_latent_dim)
  ConstTensor q_b_proj = {};                 // (H * head_dim, q_latent_dim)
  ConstTensor kv_a_proj = {};                // (kv_latent_dim + rope_head_dim, embed_dim)
  ConstTensor kv_a_bias = {};                // (kv_latent_dim + rope_head_dim)
  ConstTensor kv_a_norm = {};                // (kv_latent_dim)
  // (H * (head_dim - rope_head_dim + value_dim), kv_latent_dim): for each head the rows that make
  // its key, then those that make its value
  ConstTensor kv_b_proj = {};
};

// For a call with key_padding and the like, (B, N_k) has no B where the call is unbatched.
struct MultiHeadAttentionInputs {
  ConstTensor query = {};  // (B, N_q, embed_dim), or (N_q, B, ...), or unbatched (N_q, ...)
  ConstTensor key = {};    // (B, N_k, kdim) likewise; not given: the query
  ConstTensor value = {};  // (B, N_k, vdim) likewise; not given: the key, as always of latents
};

// Instruments for teaching and for looking into a model.
struct HeadTools {
  std::span<const float> head_scales = {};  // (H): factor on what each head gives; 0 mutes it
  bool skip_out_proj = false;               // the merged heads are the output
  float temperature = 1.0F;                 // divides the scale; more than 0
  bool scale_by_embed_dim = false;          // the mistake of 1/sqrt(embed_dim) as default scale
};

struct MultiHeadAttentionOptions {
  // As for attention(), over the keys that were given; those that the module appends are visible to
  // every query. mask: true = MAY attend, (N_q, N_k) or (B, H, N_q, N_k). The scale defaults to
  // 1/sqrt(head_dim). With appended keys alibi_slopes are refused.
  AttentionOptions attention = {};
  // attn_mask of nn.MultiheadAttention: true = may NOT attend. (N_q, N_k), (B, H, N_q, N_k) with
  // extents of 1 where shared, or PyTorch's (B * H, N_q, N_k).
  ConstBoolTensor attn_mask_blocked = {};
  // key_padding_mask of nn.MultiheadAttention: true = may NOT be attended to. (B, N_k).
  ConstBoolTensor key_padding_blocked = {};
  ConstTensor key_padding_bias = {};  // (B, N_k), added to the scores; -inf hides
  bool training = false;              // config.dropout with dropout_seed takes place
  uint64_t dropout_seed = 0;
  HeadTools heads = {};
};

// Every output but `out` is optional. N is N_k and what the module appends.
struct MultiHeadAttentionOutputs {
  Tensor out = {};           // like the query, (B, N_q, out_dim)
  Tensor weights = {};       // (B, H, N_q, N), before dropout; (H, N_q, N) where unbatched
  Tensor mean_weights = {};  // over the heads, (B, N_q, N) or (N_q, N): average_attn_weights
};

// Keys and values that a layer has seen; see MultiHeadAttention::create_cache().
class MultiHeadAttentionCache {
 public:
  // Tokens of a batch entry; 0 of one that the cache does not have.
  int64_t length(int64_t batch = 0) const;
  // Forgets the tokens of every batch entry from `length` on; 0 forgets them all. Errors: kOption
  // (negative, more than there is, or in a ring a token that was overwritten), and nothing is
  // forgotten then.
  [[nodiscard]] Status rewind(int64_t length);
  const KVCache& kv() const { return kv_; }

 private:
  friend class MultiHeadAttention;
  Status rewind_or_throw(int64_t length);
  KVCache kv_;
  uint64_t layer_ = 0;
};

class MultiHeadAttention {
 public:
  // A module of no config, which refuses every call; see create().
  MultiHeadAttention() = default;

  // A module without weights yet. Errors: kOption; num_heads that does not divide embed_dim names
  // both numbers. `module` is what it was then.
  [[nodiscard]] static Status create(const MultiHeadAttentionConfig& config,
                                     MultiHeadAttention& module);

  // Copies all parameters, which copies of the module share. Names and shapes:
  //   in_proj_weight (rows of q | k | v, embed_dim), or where kdim or vdim differ, and on the
  //   caller's choice, q_proj_weight, k_proj_weight, v_proj_weight · in_proj_bias (q | k | v) ·
  //   bias_k, bias_v (1, 1, width) · out_proj.weight, out_proj.bias · sinks (H) ·
  //   q_norm.weight, k_norm.weight (head_dim)
  // With latent attention those of DeepSeek's checkpoints, where `bias` is attention_bias and RoPE
  // is Rope::Style::kInterleaved, shaped as in MultiHeadAttentionWeights:
  //   q_proj.weight, or with q_latent_dim q_a_proj.weight, q_a_proj.bias, q_a_layernorm.weight,
  //   q_b_proj.weight · kv_a_proj_with_mqa.weight, kv_a_proj_with_mqa.bias,
  //   kv_a_layernorm.weight, kv_b_proj.weight · o_proj.weight, o_proj.bias · sinks
  // Errors: kShape, one that names every missing, unexpected and misshaped tensor; kMemory. The
  // weights are what they were then.
  [[nodiscard]] Status load_state_dict(const StateDict& dict);
  // What was loaded, as views that live as long as a module that shares it. Errors: kOption where
  // nothing was.
  [[nodiscard]] Status state_dict(StateDict& dict) const;
  // Takes views instead of copies; but steps over latents read a transposed copy of the rows of
  // kv_b_proj that make keys: after a change of those, call this again. Errors: kShape, kOption,
  // kMemory. The weights are what they were then.
  [[nodiscard]] Status use_weights(const MultiHeadAttentionWeights& weights);

  // `trace`, if not null, receives the steps that it wants, and changes no result.
  // Errors: kShape, kOption, kMemory. Nothing is written then, but after kMemory the outputs may
  // be, not the trace.
  [[nodiscard]] Status forward(const MultiHeadAttentionInputs& inputs,
                               const MultiHeadAttentionOptions& options,
                               const MultiHeadAttentionOutputs& outputs, Trace* trace,
                               Context& context) const;

  // A cache for step() of this module and its copies: `batch`, `capacity`, layout, type and pages
  // of `config` are read. Errors: kOption (also for a module with appended keys, or with key and
  // value tokens of another width; a ring needs a window that it holds), kMemory.
  [[nodiscard]] Status create_cache(const KVCacheConfig& config,
                                    MultiHeadAttentionCache& cache) const;

  // Causal self-attention of the next n tokens x (B, n, embed_dim): row for row what one forward()
  // with causal over all tokens so far would give. Latent attention attends to the latents
  // themselves (the absorbed form, one key head for all): no keys and values are made of what the
  // cache keeps. Of `options` causal, window, rope positions,
  // kv_lengths, masks in terms of blocked and key padding are kOption errors; mask and bias cover
  // the longest length including the new tokens. Errors: kOption also for the cache of another
  // layer and for steps past the capacity. The cache is what it was then; but after kMemory a ring
  // may have lost tokens that no window shows any more.
  [[nodiscard]] Status step(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                            const MultiHeadAttentionOutputs& outputs,
                            MultiHeadAttentionCache& cache, Trace* trace, Context& context) const;

  // With every 0 replaced by what it stands for.
  const MultiHeadAttentionConfig& config() const { return config_; }
  const MultiHeadAttentionWeights& weights() const { return weights_; }

 private:
  // The public calls of the same names, which turn an exception into kMemory.
  static Status create_or_throw(const MultiHeadAttentionConfig& config, MultiHeadAttention& module);
  Status load_or_throw(const StateDict& dict);
  Status use_weights_or_throw(const MultiHeadAttentionWeights& weights);
  Status forward_or_throw(const MultiHeadAttentionInputs& inputs,
                          const MultiHeadAttentionOptions& options,
                          const MultiHeadAttentionOutputs& outputs, Trace* trace,
                          Context& context) const;
  Status create_cache_or_throw(const KVCacheConfig& config, MultiHeadAttentionCache& cache) const;
  Status step_or_throw(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                       const MultiHeadAttentionOutputs& outputs, MultiHeadAttentionCache& cache,
                       Trace* trace, Context& context) const;

  MultiHeadAttentionConfig config_ = {};
  MultiHeadAttentionWeights weights_ = {};
  std::shared_ptr<const nn::Parameters> owned_;
  std::shared_ptr<const engine::Buffer> absorbed_keys_;  // W_UK of each head, transposed
  uint64_t id_ = 0;
};

}  // namespace multihead
MULTIHEAD_PUBLIC_END
