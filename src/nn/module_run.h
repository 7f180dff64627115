// The parts of a call that MultiHeadAttention::forward() and step() share: projections, memory,
// what happens to the merged heads, and the trace of all that.
#pragma once

#include <cstdint>

#include "engine/scratch.h"
#include "engine/validate.h"
#include "multihead/multi_head_attention.h"
#include "nn/sequence.h"
#include "nn/tracer.h"

namespace multihead::nn {

// The options of a call, where it has none those of the model, and the scale.
AttentionOptions joined_options(const MultiHeadAttentionConfig& config,
                                const MultiHeadAttentionWeights& weights,
                                const MultiHeadAttentionOptions& options);

inline bool has_weights(const MultiHeadAttentionWeights& weights) {
  return weights.q_proj.given() || weights.q_b_proj.given();
}

Status validate_head_tools(const HeadTools& tools, const MultiHeadAttentionConfig& config);

// Counts first and hands out afterwards, so that one reservation holds all of a call's memory.
class Arena {
 public:
  void count(double bytes) { bytes_ += bytes + kAlignment; }
  void count_floats(int64_t count_of) { count(4.0 * static_cast<double>(count_of)); }
  Status reserve(engine::Buffer& buffer);
  void* take(int64_t bytes);
  float* take_floats(int64_t count_of) { return static_cast<float*>(take(4 * count_of)); }

 private:
  static constexpr int64_t kAlignment = 64;
  double bytes_ = 0;
  char* next_ = nullptr;
};

// The means over the heads of (B, H, N_q, N) in (B, N_q, N).
void mean_over_heads(const ConstTensor& weights, const Tensor& mean, Context& context);

struct ModuleRun {
  const MultiHeadAttentionConfig& config;
  const MultiHeadAttentionWeights& weights;
  const HeadTools& tools;
  Tracer& tracer;
  Context& context;

  Sequence<const float> query = {}, key = {}, value = {};
  bool self = false;     // key and value are the query
  int64_t appended = 0;  // keys and values behind the given ones
  // Of a step over latents: make_absorbed_keys(). Otherwise null.
  const float* absorbed_keys = nullptr;
  Sequence<float> out = {};

  // Set by take(); k and v with the appended rows.
  Sequence<float> q = {}, k = {}, v = {}, merged = {};
  // Of latent attention; see latent_module.h for what it does. `kept` is [latent | shared key].
  Sequence<float> q_latent = {}, kept = {};
  Sequence<float> expanded = {};                     // [key | value] of every head
  Sequence<float> absorbed_q = {}, latent_out = {};  // of a step, with neither k nor v

  bool projects() const { return config.out_proj && !tools.skip_out_proj; }
  int64_t q_width() const { return config.num_heads * config.head_dim; }
  int64_t k_width() const { return config.num_kv_heads * config.head_dim; }
  int64_t v_width() const { return config.num_kv_heads * config.value_dim; }
  int64_t merged_width() const { return config.num_heads * config.value_dim; }
  int64_t kept_width() const { return config.kv_latent_dim + config.rope_head_dim; }
  int64_t out_width() const { return projects() ? config.out_dim : merged_width(); }

  // Floats of the trace's wanted steps, with `keys` in all.
  double trace_floats(int64_t keys) const;
  void count(Arena& arena) const;
  void take(Arena& arena);

  // q, k, v from the tokens.
  Status project_inputs() const;
  // The tokens and what has been made of them so far.
  void trace_inputs() const;
  // QK-norm and RoPE of queries and keys in their place; the options lose both.
  Status transform(AttentionOptions& options) const;
  void append() const;

  // What attention() reads and writes, (B, H or H_kv, N, width).
  Tensor q_heads() const;
  Tensor k_heads() const;
  Tensor v_heads() const;
  Tensor attended_heads() const;
  void trace_heads() const;

  // Of a step over latents, after transform() and before finish().
  Status absorb_queries() const;
  Status expand_values() const;

  // From the merged heads to `out`.
  Status finish() const;

 private:
  bool latent() const { return config.kv_latent_dim > 0; }
  bool fused() const;
  void count_latent(Arena& arena) const;
  void take_latent(Arena& arena);
  Status project_latent() const;
};

}  // namespace multihead::nn
