// The two forms of latent attention (MLA, arXiv:2405.04434, section 2.1): the steps before and
// after attention(). A key token has a latent c, of `rank` numbers, and a vector r, turned by RoPE,
// that all heads share. For head h:
//
//   Expanded: the key is [W_UK,h c | r], the value W_UV,h c.
//   Absorbed: q . key = [W_UK,h^T q_nope | q_rope] . [c | r], and the weighted sum of values is
//   W_UV,h times the weighted sum of latents. So [c | r] is one key head and c one value head for
//   all query heads.
//
// H heads, B batch entries, N tokens.
#pragma once

#include <cstdint>

#include "engine/runtime/scratch.h"
#include "multihead/context.h"
#include "multihead/multi_head_attention.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "nn/attention/sequence.h"

namespace multihead::nn {

struct LatentWeights {
  ConstTensor w_uk;  // (H, qk_nope_head_dim, rank)
  ConstTensor w_uv;  // (H, value_dim, rank)
};

// Views of both matrices in kv_b_proj. For each head, kv_b_proj has the rows of W_UK, then the rows
// of W_UV.
LatentWeights split_kv_b_proj(const ConstTensor& kv_b_proj, int64_t heads,
                              int64_t qk_nope_head_dim);

// Shape of the scratch memory of expand_keys_values().
Dims expansion_shape(const LatentWeights& weights, int64_t batch, int64_t tokens);

// Computes k (B, H, N, qk_nope_head_dim + rope) and v (B, H, N, value_dim) from latent (B, N, rank)
// and k_rope (B, N, rope).
Status expand_keys_values(const LatentWeights& weights, const Sequence<const float>& latent,
                          const Sequence<const float>& k_rope, const Tensor& k, const Tensor& v,
                          float* scratch, Context& context);

// Computes W_UK^T, the operand of absorb_queries(), for heads first .. end - 1. `transposed` (H,
// rank, qk_nope_head_dim) has room for all heads.
void transpose_key_weights(const ConstTensor& w_uk, int64_t first, int64_t end, float* transposed);

// Computes absorbed (B, H, N, rank + rope) from q_nope (B, H, N, qk_nope_head_dim) and q_rope (B,
// H, N, rope).
Status absorb_queries(const ConstTensor& w_uk_transposed, const ConstTensor& q_nope,
                      const ConstTensor& q_rope, const Tensor& absorbed, Context& context);

// Computes out (B, H, N, value_dim) from attended (B, H, N, rank), the weighted sums of latents.
Status expand_outputs(const ConstTensor& w_uv, const ConstTensor& attended, const Tensor& out,
                      Context& context);

// Latent attention in a MultiHeadAttention. Per token x, with [a | b] for concatenation:
//
//   [c | r] = W_a x, c <- RMSNorm(c)                 kv_a_proj, kv_a_norm
//   q_h = W_q x, or W_qb RMSNorm(W_qa x)             q_proj, or q_a_proj, q_a_norm, q_b_proj
//
// followed by RoPE of r and of the last rope_head_dim numbers of q_h. forward() uses the expanded
// form, step() the absorbed form: its cache holds only [c | RoPE(r)].

// Width of the last part of a query or key head: QK-norm and RoPE apply only to this part.
inline int64_t transformed_width(const MultiHeadAttentionConfig& config) {
  return config.kv_latent_dim > 0 ? config.rope_head_dim : config.head_dim;
}

// Refuses configs that contradict latent attention, and configs that set its options without it.
// Replaces zeros of `config` by their defaults, except value_dim and out_dim.
Status validate_latent_config(const MultiHeadAttentionConfig& config);
// Refuses options, of a call or of a config, that contradict latent attention.
Status validate_latent_options(const MultiHeadAttentionConfig& config,
                               const AttentionOptions& options);

// Computes W_UK^T of every head, (H, kv_latent_dim, qk_nope_head_dim).
Status make_absorbed_keys(const MultiHeadAttentionConfig& config, const ConstTensor& kv_b_proj,
                          engine::Buffer& absorbed_keys);

}  // namespace multihead::nn
