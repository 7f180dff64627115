/// \file
/// Named intermediate results of a forward pass, to show and to test.
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

MULTIHEAD_PUBLIC_BEGIN
namespace multihead {

/// The values of a step, read-only. Copies share their memory.
class TraceValues {
 public:
  TraceValues() = default;  ///< no values
  /// `size` numbers that `data` owns.
  TraceValues(std::shared_ptr<const float> data, size_t size)
      : data_(std::move(data)), size_(size) {}

  /// The first number, or null.
  const float* data() const { return data_.get(); }
  /// Number of values.
  size_t size() const { return size_; }
  /// True if there are no values.
  bool empty() const { return size_ == 0; }
  /// For loops over the numbers.
  const float* begin() const { return data(); }
  /// For loops over the numbers.
  const float* end() const { return data() + size_; }
  /// Value at `index`, which must be less than size().
  float operator[](size_t index) const { return data()[index]; }

 private:
  std::shared_ptr<const float> data_;
  size_t size_ = 0;
};

/// One intermediate result, row-major.
struct TraceStep {
  std::string name;    ///< one of trace_names()
  Dims shape;          ///< as listed at Trace
  TraceValues values;  ///< row-major
};

/// The steps of MultiHeadAttention, in the order of computation. B batch entries, N_q queries, N_k
/// keys (from k_heads on, including the appended keys), H query heads, H_kv key heads. Shapes are
/// batch-first, for unbatched and sequence-first calls too.
///
/// - x (B, N_q, embed_dim)
/// - x_key, x_value (B, N_k, kdim or vdim), in cross-attention only
/// - q_latent (B, N_q, q_latent_dim), kv_latent (B, N_k, kv_latent_dim), both after their norm, and
///   k_rope (B, N_k, rope_head_dim) before RoPE, in latent attention only
/// - q, k, v (B, N, heads * head_dim)
/// - q_heads, k_heads, v_heads (B, H or H_kv, N, head_dim), after QK-norm and RoPE
/// - scores (B, H, N_q, N_k), Q K^T
/// - scaled_scores
/// - masked_scores, -inf where hidden
/// - weights
/// - heads_out (B, H, N_q, value_dim)
/// - merged (B, N_q, H * value_dim), after head_scales
/// - per_head_output (B, H, N_q, out_dim), z_h W_O^h; their sum over the heads is the output minus
///   its bias
/// - output (B, N_q, out_dim)
///
/// step() of latent attention computes no k and v. Its k_heads are the cached rows, one head (B, 1,
/// n, kv_latent_dim + rope_head_dim); its v_heads are the first kv_latent_dim columns of k_heads;
/// q_heads (B, H, n, kv_latent_dim + rope_head_dim) are the absorbed queries. latent_out (B, H, n,
/// kv_latent_dim), the weights times v_heads, comes before heads_out.
struct Trace {
  /// The names to record, in any order; empty for all. Names that are not in trace_names() are
  /// kOption errors.
  std::vector<std::string> wanted = {};
  /// The recorded steps, replaced by each successful call.
  std::vector<TraceStep> steps = {};

  /// True if a step of this name is recorded.
  bool wants(std::string_view name) const;
  /// Null if there is no such step.
  const TraceStep* find(std::string_view name) const;
};

/// The names of all steps, in the order above.
std::span<const std::string_view> trace_names();

}  // namespace multihead
MULTIHEAD_PUBLIC_END
