// Steps that forward(), backward() and step() of MultiHeadAttention share: memory, projections,
// QK-norm and RoPE, the output projection, and their trace.
#pragma once

#include <cstdint>

#include "cpu/elementwise/gradients.h"
#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/runtime/team.h"
#include "multihead/multi_head_attention.h"
#include "nn/attention/sequence.h"
#include "nn/attention/tracer.h"
#include "nn/kept.h"
#include "rules/arena.h"

namespace multihead::nn {

// Identifies a call whose arrays are kept. Options such as head_scales change their size.
struct KeptCall {
  engine::AttentionShape shape;
  uint64_t bytes = 0;
  bool operator==(const KeptCall&) const = default;
};
struct KeptAttention : KeptArrays<KeptCall> {};

struct ModuleCall {
  const MultiHeadAttentionConfig& config;
  const MultiHeadAttentionWeights& weights;
  const HeadInterventions& interventions;
  Tracer& tracer;
  Context& context;

  Sequence<const float> query = {}, key = {}, value = {};
  Precision precision = Precision::kF32;  // precision of the projections
  bool self = false;                      // self-attention: key and value are the query
  int64_t appended = 0;                   // number of appended keys
  // Result of make_absorbed_keys() for a step of latent attention; otherwise null.
  const float* absorbed_keys = nullptr;
  Sequence<float> out = {};
  cpu::RowDropout out_dropout = {};  // output dropout; none if the probability is 0
  bool normalizes = false;           // true if QK-norm is applied
  bool keeps = false;                // true if arrays that backward() reads get their own memory

  // Set by lay_out(). k and v include the appended rows.
  Sequence<float> q = {}, k = {}, v = {};
  Sequence<float> attended = {};   // output of attention, heads side by side
  Sequence<float> merged = {};     // `attended` times head_scales
  Sequence<float> undropped = {};  // output before dropout, (B, N_q, out_width())
  // Latent attention only; see latent.h. compressed_kv holds [c | r] of every key token.
  Sequence<float> q_latent = {}, compressed_kv = {};
  // Not null if `keeps`: the log-sum-exp (B, H, N_q), q and k before QK-norm, the latents before
  // their norms.
  float* lse = nullptr;
  Sequence<float> plain_q = {}, plain_k = {}, plain_q_latent = {}, plain_kv_latent = {};
  float* expansion = nullptr;                        // scratch of expand_keys_values()
  Sequence<float> absorbed_q = {}, latent_out = {};  // latent attention's step() only

  bool drops() const { return out_dropout.probability > 0.0F; }
  bool projects() const { return config.out_proj; }
  int64_t q_width() const { return config.num_heads * config.head_dim; }
  int64_t k_width() const { return config.num_kv_heads * config.head_dim; }
  int64_t v_width() const { return config.num_kv_heads * config.value_dim; }
  int64_t merged_width() const { return config.num_heads * config.value_dim; }
  int64_t compressed_kv_width() const { return config.kv_latent_dim + config.rope_head_dim; }
  int64_t out_width() const { return projects() ? config.out_dim : merged_width(); }

  // Number of floats in the wanted trace steps. `keys` includes the appended keys.
  double trace_floats(int64_t keys) const;
  void lay_out(rules::Arena& take);
  // The call as KeptArrays identifies it.
  KeptCall kept_call(const engine::AttentionShape& shape);

  // True if the columns of q, k and v that a team member computes belong to the member's heads.
  bool projects_own_heads(const engine::Team& team) const;
  // Computes q, k and v.
  Status project_inputs() const;
  void trace_inputs() const;
  // QK-norm and RoPE of q and k, according to `options`.
  engine::InputTransforms transforms(const AttentionOptions& options) const;
  // Columns of each head that QK-norm and RoPE change; transformed_keys() returns the columns of
  // the keys.
  Tensor transformed_columns(const Sequence<float>& rows, int64_t heads) const;
  Tensor transformed_keys() const;
  // Applies QK-norm and RoPE to q and k, in place, and removes both from `options`.
  Status transform(AttentionOptions& options) const;
  void append() const;

  // Operands and outputs of attention(): (B, H or H_kv, N, width).
  Tensor q_heads() const;
  Tensor k_heads() const;
  Tensor v_heads() const;
  Tensor attended_heads() const;
  Tensor lse_tensor() const;  // not given unless `keeps`
  void trace_heads() const;

  // For a step of latent attention: absorb_queries() runs before the attention, expand_values()
  // after it.
  Status absorb_queries() const;
  Status expand_values() const;

  // Writes the heads times head_scales to `merged`.
  void scale_heads() const;
  // Applies the output dropout to contiguous rows, in place; the backward is the same.
  void drop_out(const Sequence<float>& rows) const;
  // Scales the heads and projects them to `out`.
  Status finish() const;

  // True if one product computes q, k and v: their weights lie side by side, as in in_proj_weight.
  bool fused() const;
  bool latent() const { return config.kv_latent_dim > 0; }
  // Allocates arrays with the shapes of q, k and v.
  void lay_out_heads(rules::Arena& take, Sequence<float>& q_rows, Sequence<float>& k_rows,
                     Sequence<float>& v_rows) const;
  // Returns `rows` without the appended rows.
  Sequence<float> given(Sequence<float> rows) const {
    rows.tokens -= appended;
    return rows;
  }

 private:
  void lay_out_latent(rules::Arena& take);
  Status project_latent() const;
};

}  // namespace multihead::nn
