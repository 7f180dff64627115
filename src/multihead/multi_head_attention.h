// Multi-head self-attention as a module: project, split into heads, attend, merge, project.
//
// Definition: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2; weights in the
// layout of torch.nn.MultiheadAttention (rows are outputs, y = x W^T + b).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "multihead/attention.h"

namespace multihead {

// A named intermediate, row-major.
struct TraceStep {
  std::string name;
  Dims shape;
  std::vector<float> values;
};

// Every step of one forward pass, in the order of computation, under these names:
//   x (B, N, d_in) · q, k, v (B, N, H*d_head) · q_heads, k_heads, v_heads (B, H, N, d_head) ·
//   scores (B, H, N, N), raw Q K^T · scaled_scores · masked_scores, -inf where hidden ·
//   weights · heads_out (B, H, N, d_head) · merged (B, N, H*d_head) · output (B, N, d_out)
struct Trace {
  std::vector<TraceStep> steps;
  // The step of that name, or null.
  const TraceStep* find(std::string_view name) const;
};

struct MultiHeadAttentionConfig {
  int64_t embed_dim = 0;  // d_in, and d_out where there is an output projection
  int64_t num_heads = 0;
  // Width of one head; 0 takes embed_dim / num_heads, which must then divide evenly.
  int64_t head_dim = 0;
};

// Views of the caller's memory, which must outlive the calls that use them.
struct MultiHeadAttentionWeights {
  ConstTensor q_proj = {}, k_proj = {}, v_proj = {};  // (H*d_head, embed_dim)
  ConstTensor q_bias = {}, k_bias = {}, v_bias = {};  // (H*d_head), optional
  ConstTensor out_proj = {};  // (embed_dim, H*d_head); without it the merged heads are the output
  ConstTensor out_bias = {};  // (embed_dim), optional
};

// x (B, N, embed_dim), contiguous -> output (B, N, embed_dim), or (B, N, H*d_head) without
// out_proj. `options` are those of attention(); the scale defaults to 1/sqrt(head_dim), never
// 1/sqrt(embed_dim). `trace`, if not null, receives every step; it does not change the output.
//
// Errors: kShape and kOption with the argument's name; num_heads that does not divide
// embed_dim is kOption and names both numbers; kMemory. Nothing is written then, but after
// kMemory the trace may be incomplete.
[[nodiscard]] Status multi_head_attention(const MultiHeadAttentionConfig& config,
                                          const MultiHeadAttentionWeights& weights,
                                          const ConstTensor& x, const AttentionOptions& options,
                                          const Tensor& output, Trace* trace, Context& context);

}  // namespace multihead
