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
  Tracer tracer;
  Context& context;

  Sequence<const float> query = {}, key = {}, value = {};
  bool self = false;     // key and value are the query
  int64_t appended = 0;  // keys and values behind the given ones
  Sequence<float> out = {};

  // Set by take(); k and v with the appended rows.
  Sequence<float> q = {}, k = {}, v = {}, merged = {};

  bool projects() const { return config.out_proj && !tools.skip_out_proj; }
  int64_t q_width() const { return config.num_heads * config.head_dim; }
  int64_t k_width() const { return config.num_kv_heads * config.head_dim; }
  int64_t v_width() const { return config.num_kv_heads * config.value_dim; }
  int64_t merged_width() const { return config.num_heads * config.value_dim; }
  int64_t out_width() const { return projects() ? config.out_dim : merged_width(); }

  // Floats of the trace's wanted steps, with `keys` in all.
  int64_t trace_floats(int64_t keys) const;
  void count(Arena& arena) const;
  void take(Arena& arena);

  // q, k, v from the tokens, traced.
  Status project_inputs() const;
  // QK-norm and RoPE of queries and keys in their place; the options lose both.
  Status transform(AttentionOptions& options) const;
  void append() const;
  // From the merged heads to `out`.
  Status finish() const;

 private:
  bool fused() const;
};

}  // namespace multihead::nn
