/// \file
/// Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1). The keys and
/// values of all heads are computed from one low-rank latent per token. A second vector per token,
/// rotated by RoPE, is part of every head's key.
#pragma once

#include <cstdint>

#include "multihead/attention.h"
#include "multihead/export.h"

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// Inputs of latent_attention(). For head h: key = [W_uk[h] latent | k_rope], value = W_uv[h]
/// latent, query = [q_nope | q_rope]. A cache needs to hold only latent and k_rope: rank + d_rope
/// numbers per token for all heads.
struct LatentAttentionInputs {
  ConstTensor q_nope;  ///< (B, H, N_q, d_nope)
  ConstTensor q_rope;  ///< (B, H, N_q, d_rope), already rotated
  ConstTensor latent;  ///< (B, N_k, rank)
  ConstTensor k_rope;  ///< (B, N_k, d_rope), already rotated, shared by all heads
  ConstTensor w_uk;    ///< (H, d_nope, rank)
  ConstTensor w_uv;    ///< (H, d_v, rank)
};

/// Two ways to compute latent_attention(), with the same result up to rounding.
enum class LatentForm : uint8_t {
  kExpanded,  ///< computes keys and values of every head, then attends to them: for prefill
  kAbsorbed,  ///< multiplies queries by W_uk and outputs by W_uv, and attends to the latent as a
              ///< single key and value head, shared by all query heads: for decoding
};

/// Multi-head latent attention. outputs.out (B, H, N_q, d_v), lse (B, H, N_q), weights (B, H, N_q,
/// N_k). Both forms give the same result up to rounding; the scale defaults to 1/sqrt(d_nope +
/// d_rope). Outputs other than `out` (f32), `lse` and `weights`, options.rope and options.qk_norm
/// are kOption errors. If w_uk and w_uv are views of one matrix with the rows of kv_b_proj (see
/// MultiHeadAttentionWeights), a single product expands all heads, which is faster.
[[nodiscard]] Status latent_attention(const LatentAttentionInputs& inputs, LatentForm form,
                                      const AttentionOptions& options,
                                      const AttentionOutputs& outputs, Context& context);

}  // namespace multihead
MULTIHEAD_PUBLIC_END
