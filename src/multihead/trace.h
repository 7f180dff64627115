// Named intermediates of a forward pass, for showing and for testing.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "multihead/export.h"
#include "multihead/tensor.h"

namespace MULTIHEAD_PUBLIC multihead {

// The numbers of a step. Copies share the memory, which nothing writes to any more.
class TraceValues {
 public:
  TraceValues() = default;
  // `size` numbers from `data` on.
  TraceValues(std::shared_ptr<const float> data, size_t size)
      : data_(std::move(data)), size_(size) {}

  const float* data() const { return data_.get(); }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const float* begin() const { return data(); }
  const float* end() const { return data() + size_; }
  float operator[](size_t index) const { return data()[index]; }

 private:
  std::shared_ptr<const float> data_;
  size_t size_ = 0;
};

// A named intermediate, row-major.
struct TraceStep {
  std::string name;
  Dims shape;
  TraceValues values;
};

// What MultiHeadAttention computes on its way, in the order of computation. B batch, N_q queries,
// N_k keys (appended ones from k_heads on), H and H_kv heads. An unbatched or sequence-first call
// is traced as the batch-first one that it amounts to.
//
//   x (B, N_q, embed_dim) · x_key, x_value (B, N_k, kdim or vdim), in cross-attention only ·
//   q_latent (B, N_q, q_latent_dim), kv_latent (B, N_k, kv_latent_dim), both normalised, and k_rope
//   (B, N_k, rope_head_dim), in latent attention only ·
//   q, k, v (B, N, heads * head_dim) · q_heads, k_heads, v_heads (B, H or H_kv, N, head_dim), after
//   QK-norm and RoPE · scores (B, H, N_q, N_k), Q K^T · scaled_scores · masked_scores, -inf where
//   hidden · weights · heads_out (B, H, N_q, value_dim) · merged (B, N_q, H * value_dim), after
//   head_scales · head_shares (B, H, N_q, out_dim), z_h W_O^h, which add up to the output less its
//   bias · output (B, N_q, out_dim)
//
// A step over latents makes no k and v. There k_heads and v_heads are what is kept, of one head:
// (B, 1, n, kv_latent_dim + rope_head_dim), and the first kv_latent_dim of it. q_heads
// (B, H, n, kv_latent_dim + rope_head_dim) are the queries of those; latent_out
// (B, H, n, kv_latent_dim), weights times v_heads, comes before heads_out.
struct Trace {
  // The names to record, in any order; empty for all. A name that is none of trace_names() is a
  // kOption error.
  std::vector<std::string> wanted = {};
  // Replaced by each call that succeeds; what they were after one that does not.
  std::vector<TraceStep> steps = {};

  bool wants(std::string_view name) const;
  // The step of that name, or null.
  const TraceStep* find(std::string_view name) const;
};

// All of the above, in that order.
std::span<const std::string_view> trace_names();

}  // namespace multihead
