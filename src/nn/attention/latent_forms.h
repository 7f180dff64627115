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

#include "multihead/context.h"
#include "multihead/status.h"
#include "multihead/tensor.h"
#include "nn/attention/sequence.h"

namespace multihead::nn {

struct LatentWeights {
  ConstTensor w_uk;  // (H, qk_nope_head_dim, rank)
  ConstTensor w_uv;  // (H, value_dim, rank)
};

// Both as views of kv_b_proj, whose rows are, for each head, those of W_UK, then those of W_UV.
LatentWeights split_kv_b_proj(const ConstTensor& kv_b_proj, int64_t heads,
                              int64_t qk_nope_head_dim);

// Shape of the scratch memory that expand_keys_values() needs.
Dims expansion_shape(const LatentWeights& weights, int64_t batch, int64_t tokens);

// k (B, H, N, qk_nope_head_dim + rope) and v (B, H, N, value_dim) of latent (B, N, rank) and
// k_rope (B, N, rope).
Status expand_keys_values(const LatentWeights& weights, const Sequence<const float>& latent,
                          const Sequence<const float>& k_rope, const Tensor& k, const Tensor& v,
                          float* scratch, Context& context);

// W_UK^T, which absorb_queries() multiplies by, of heads first .. end - 1. `transposed` is that of
// all heads, (H, rank, qk_nope_head_dim).
void transpose_key_weights(const ConstTensor& w_uk, int64_t first, int64_t end, float* transposed);

// absorbed (B, H, N, rank + rope) of q_nope (B, H, N, qk_nope_head_dim) and q_rope (B, H, N, rope).
Status absorb_queries(const ConstTensor& w_uk_transposed, const ConstTensor& q_nope,
                      const ConstTensor& q_rope, const Tensor& absorbed, Context& context);

// out (B, H, N, value_dim) of attended (B, H, N, rank), the latents' weighted sums.
Status expand_outputs(const ConstTensor& w_uv, const ConstTensor& attended, const Tensor& out,
                      Context& context);

}  // namespace multihead::nn
