// The steps that MultiHeadAttention::forward() and step() share: memory, projections, QK-norm and
// RoPE, the output projection, and the trace of these.
#pragma once

#include <cstdint>

#include "engine/validate.h"
#include "multihead/multi_head_attention.h"
#include "nn/attention/sequence.h"
#include "nn/attention/tracer.h"
#include "rules/arena.h"

namespace multihead::nn {

struct ModuleCall {
  const MultiHeadAttentionConfig& config;
  const MultiHeadAttentionWeights& weights;
  const HeadInterventions& interventions;
  Tracer& tracer;
  Context& context;

  Sequence<const float> query = {}, key = {}, value = {};
  bool self = false;     // self-attention: key and value are the query
  int64_t appended = 0;  // number of appended keys
  // From make_absorbed_keys(), if this is a step of latent attention; otherwise null.
  const float* absorbed_keys = nullptr;
  Sequence<float> out = {};

  // Set by lay_out(). k and v include the appended rows.
  Sequence<float> q = {}, k = {}, v = {}, merged = {};
  // Of latent attention; see latent_forms.h. compressed_kv is [c | r] of every key token.
  Sequence<float> q_latent = {}, compressed_kv = {};
  float* expansion = nullptr;                        // scratch of expand_keys_values()
  Sequence<float> absorbed_q = {}, latent_out = {};  // of a step, which has no k and v

  bool projects() const { return config.out_proj && !interventions.skip_out_proj; }
  int64_t q_width() const { return config.num_heads * config.head_dim; }
  int64_t k_width() const { return config.num_kv_heads * config.head_dim; }
  int64_t v_width() const { return config.num_kv_heads * config.value_dim; }
  int64_t merged_width() const { return config.num_heads * config.value_dim; }
  int64_t compressed_kv_width() const { return config.kv_latent_dim + config.rope_head_dim; }
  int64_t out_width() const { return projects() ? config.out_dim : merged_width(); }

  // Floats of the wanted trace steps. `keys` includes the appended ones.
  double trace_floats(int64_t keys) const;
  void lay_out(rules::Arena& take);

  // Sets q, k and v.
  Status project_inputs() const;
  void trace_inputs() const;
  // Applies QK-norm and RoPE to q and k, in place, and removes both from `options`.
  Status transform(AttentionOptions& options) const;
  void append() const;

  // What attention() reads and writes, (B, H or H_kv, N, width).
  Tensor q_heads() const;
  Tensor k_heads() const;
  Tensor v_heads() const;
  Tensor attended_heads() const;
  void trace_heads() const;

  // For a step of latent attention: absorb_queries() before the attention, expand_values() after.
  Status absorb_queries() const;
  Status expand_values() const;

  // Scales the merged heads and projects them to `out`.
  Status finish() const;

 private:
  bool latent() const { return config.kv_latent_dim > 0; }
  bool fused() const;
  void lay_out_latent(rules::Arena& take);
  Status project_latent() const;
};

}  // namespace multihead::nn
