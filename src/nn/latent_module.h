// What is special about a MultiHeadAttention with latent attention (MLA, arXiv:2405.04434, section
// 2.1). Per token x, with [a | b] for side by side:
//
//   [c | r] = W_a x, c <- RMSNorm(c)           kv_a_proj: latent and shared part of the keys
//   [k_h' | v_h] = W_b,h c, k_h = [k_h' | RoPE(r)]     kv_b_proj
//   q_h = [q_h' | RoPE(q_h'')] of W_q x, or of W_qb RMSNorm(W_qa x)
//
// forward() expands keys and values as written. step() keeps [c | RoPE(r)] alone and absorbs W_b:
// with W_b,h = [W_UK,h; W_UV,h], q_h' . W_UK,h c = (W_UK,h^T q_h') . c, and the sum of weights
// times W_UV,h c is W_UV,h times the sum of weights times c. That is one key head of width
// kv_latent_dim + rope_head_dim for all query heads.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/scratch.h"
#include "multihead/multi_head_attention.h"

namespace multihead::nn {

// How much of a query or key head QK-norm and RoPE work on.
inline int64_t transformed_width(const MultiHeadAttentionConfig& config) {
  return config.kv_latent_dim > 0 ? config.rope_head_dim : config.head_dim;
}

// Options that contradict latent attention, or that mean nothing without it. All zeros of `config`
// but value_dim are replaced.
Status validate_latent_config(const MultiHeadAttentionConfig& config);
// The same of a call, whose options have those of the model.
Status validate_latent_options(const MultiHeadAttentionConfig& config,
                               const AttentionOptions& options);

// W_UK^T of every head, (H, kv_latent_dim, head_dim - rope_head_dim).
Status make_absorbed_keys(const MultiHeadAttentionConfig& config, const ConstTensor& kv_b_proj,
                          std::shared_ptr<const engine::Buffer>& absorbed_keys);

}  // namespace multihead::nn
