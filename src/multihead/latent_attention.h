// Multi-head latent attention (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1): keys and values
// of all heads come from one low-rank latent per token, plus a shared part that carries RoPE.
#pragma once

#include <cstdint>

#include "multihead/attention.h"
#include "multihead/export.h"

namespace MULTIHEAD_PUBLIC multihead {

// Per head h: key = [W_uk[h] c | k_rope], value = W_uv[h] c, query = [q_nope | q_rope].
// c is what a cache has to keep: rank + d_rope numbers a token, whatever the number of heads.
struct LatentAttentionInputs {
  ConstTensor q_nope;  // (B, H, N_q, d_nope)
  ConstTensor q_rope;  // (B, H, N_q, d_rope), already rotated
  ConstTensor latent;  // (B, N_k, rank)
  ConstTensor k_rope;  // (B, N_k, d_rope), already rotated, shared by all heads
  ConstTensor w_uk;    // (H, d_nope, rank)
  ConstTensor w_uv;    // (H, d_v, rank)
};

enum class LatentForm : uint8_t {
  kExpanded,  // keys and values of every head are made, then attended to: prefill
  kAbsorbed,  // W_uk goes into the query and W_uv into the output, and attention runs on the
              // latent itself, one key/value head for all: decoding
};

// out (B, H, N_q, d_v). The scale defaults to 1/sqrt(d_nope + d_rope) in both forms, which give
// the same result up to rounding. Of the outputs only `out` (f32), `lse` and `weights` are
// allowed; options.rope and qk_norm are kOption errors.
[[nodiscard]] Status latent_attention(const LatentAttentionInputs& inputs, LatentForm form,
                                      const AttentionOptions& options,
                                      const AttentionOutputs& outputs, Context& context);

}  // namespace multihead
