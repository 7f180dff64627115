// Latent attention in a MultiHeadAttention. Per token x, with [a | b] for concatenation:
//
//   [c | r] = W_a x, c <- RMSNorm(c)                 kv_a_proj, kv_a_norm
//   q_h = W_q x, or W_qb RMSNorm(W_qa x)             q_proj, or q_a_proj, q_a_norm, q_b_proj
//
// followed by RoPE of r and of the last rope_head_dim numbers of q_h. forward() uses the expanded
// form of latent_forms.h, step() the absorbed form: its cache holds only [c | RoPE(r)].
#pragma once

#include <cstdint>

#include "engine/runtime/scratch.h"
#include "multihead/multi_head_attention.h"

namespace multihead::nn {

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
