#include "nn/attention/module_gradients.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "engine/attention/backward.h"
#include "engine/attention/transform.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "multihead/attention_backward.h"
#include "nn/call_memory.h"

namespace multihead::nn {
namespace {

void add_to(const float* from, const Tensor& gradient) {
  for (int64_t i = 0; i < gradient.shape[0]; ++i) gradient.data[i] += from[i];
}

// True if the gradients are adjacent rows of one matrix or adjacent parts of one vector, or if none
// is given.
bool side_by_side(const Tensor& q, const Tensor& k, const Tensor& v) {
  if (!q.given() && !k.given() && !v.given()) return true;
  if (!q.given() || !k.given() || !v.given()) return false;
  const int64_t width = q.shape.rank() == 2 ? q.shape[1] : 1;
  for (const Tensor* tensor : {&q, &k, &v}) {
    if (tensor->strides[0] != width) return false;
  }
  return k.data == q.data + q.shape[0] * width && v.data == k.data + k.shape[0] * width;
}

// Joins three adjacent tensors into one.
Tensor joined(const Tensor& q, const Tensor& k, const Tensor& v) {
  Tensor all = q;
  if (all.given()) all.shape[0] += k.shape[0] + v.shape[0];
  return all;
}

}  // namespace

void ModuleGradients::lay_out(rules::Arena& take) {
  const MultiHeadAttentionConfig& c = call_.config;
  if (call_.drops()) {
    float* data = nullptr;
    take(data, saturated_elements({call_.query.batch, call_.query.tokens, call_.out_width()}));
    d_dropped_ =
        contiguous_sequence(data, call_.query.batch, call_.query.tokens, call_.out_width());
  }
  d_heads_ = sequence_like(call_.query, call_.merged_width(), take);
  call_.lay_out_heads(take, d_q_, d_k_, d_v_);
  take(d_vector_, static_cast<uint64_t>(std::max(c.num_heads, c.head_dim)));
  if (!call_.latent()) return;
  d_q_latent_ = sequence_like(call_.query, c.q_latent_dim, take);
  d_kv_latent_ = sequence_like(call_.key, c.kv_latent_dim, take);
  d_compressed_kv_ = sequence_like(call_.key, call_.compressed_kv_width(), take);
  d_expanded_ =
      sequence_like(call_.key, c.num_heads * (c.head_dim - c.rope_head_dim + c.value_dim), take);
}

Sequence<float> ModuleGradients::gradient_of(const Tensor& tensor) const {
  return tensor.given() ? sequence_of(tensor, call_.config.batch_first) : Sequence<float>();
}

Status ModuleGradients::run(const Sequence<const float>& d_out, const AttentionOptions& effective,
                            bool key_given, bool value_given) const {
  MULTIHEAD_TRY(finish_back(d_out));
  MULTIHEAD_TRY(attention_back(effective));
  MULTIHEAD_TRY(transform_back());
  append_back();
  return project_back(key_given, value_given);
}

Status ModuleGradients::finish_back(Sequence<const float> d_out) const {
  Context& context = call_.context;
  if (call_.drops()) {
    const Sequence<float>& d = d_dropped_;
    engine::copy_rows(d_out.heads(1), d.heads(1), context);
    call_.drop_out(d);
    d_out = d;
  }
  if (call_.projects()) {
    MULTIHEAD_TRY(matrix_back({.x = call_.merged,
                               .weight = call_.weights.out_proj,
                               .d_y = d_out,
                               .d_x = d_heads_,
                               .d_weight = gradients_.weights.out_proj,
                               .d_bias = gradients_.weights.out_bias}));
  } else {
    engine::copy_rows(d_out.heads(1), d_heads_.heads(1), context);
  }
  const std::span<const float> scales = call_.interventions.head_scales;
  if (!scales.empty()) {
    engine::scale_heads(d_heads_.heads(call_.config.num_heads), scales, context);
  }
  return {};
}

Status ModuleGradients::matrix_back(ProjectBackward call) const {
  call.precision = call_.precision;
  return project_backward(call, call_.context);
}

Status ModuleGradients::attention_back(const AttentionOptions& effective) const {
  const MultiHeadAttentionConfig& c = call_.config;
  // If the call's own sinks replace the module's, the module's sinks have no gradient.
  const Tensor& d_sinks = gradients_.weights.sinks;
  const bool own_sinks = d_sinks.given() && effective.sinks.data() == call_.weights.sinks.data;
  MULTIHEAD_TRY(attention_backward(
      call_.q_heads(), call_.k_heads(), call_.v_heads(), effective,
      {.out = call_.attended_heads(), .lse = call_.lse_tensor(), .check_lse = false},
      d_heads_.heads(c.num_heads),
      {.d_q = d_q_.heads(c.num_heads),
       .d_k = d_k_.heads(c.num_kv_heads),
       .d_v = d_v_.heads(c.num_kv_heads),
       .d_sinks =
           own_sinks ? std::span(d_vector_, static_cast<size_t>(c.num_heads)) : std::span<float>()},
      call_.context));
  if (own_sinks) add_to(d_vector_, d_sinks);
  return {};
}

Status ModuleGradients::transform_back() const {
  const MultiHeadAttentionConfig& c = call_.config;
  const engine::InputTransforms inputs = call_.transforms(options_);
  const engine::Transform query_transform = inputs.query_transform();
  if (query_transform.does_nothing()) return {};
  // Without QK-norm, RoPE's backward reads only the shape of its input, not the values.
  const bool norms = query_transform.normalize;
  const struct {
    const engine::Transform transform;
    const ConstAnyTensor x;
    Tensor gradient;
    const ConstTensor& gain;
    const Tensor& d_gain;
  } sides[] = {
      {query_transform, norms ? call_.transformed_columns(call_.plain_q, c.num_heads) : inputs.q,
       call_.transformed_columns(d_q_, c.num_heads), call_.weights.q_norm,
       gradients_.weights.q_norm},
      {inputs.key_transform(),
       norms ? call_.transformed_columns(call_.plain_k, c.num_kv_heads) : inputs.k,
       call_.transformed_columns(call_.given(d_k_), c.num_kv_heads), call_.weights.k_norm,
       gradients_.weights.k_norm}};
  for (const auto& [transform, x, gradient, gain, d_gain] : sides) {
    // The module's gain has no gradient if the call's own gain replaces it.
    const bool own = d_gain.given() && transform.gain.data() == gain.data;
    const auto part =
        own ? std::span(d_vector_, static_cast<size_t>(c.head_dim)) : std::span<float>();
    MULTIHEAD_TRY(engine::transform_back(x, transform, gradient, part, call_.context));
    if (own) add_to(d_vector_, d_gain);
  }
  return {};
}

void ModuleGradients::append_back() const {
  if (!call_.config.add_bias_kv) return;
  for (const auto& [rows, gradient] :
       {std::pair{&d_k_, &gradients_.weights.bias_k}, {&d_v_, &gradients_.weights.bias_v}}) {
    if (!gradient->given()) continue;
    for (int64_t b = 0; b < rows->batch; ++b) {
      add_to(rows->token(b, rows->tokens - call_.appended), *gradient);
    }
  }
}

bool ModuleGradients::fused() const {
  const auto& w = gradients_.weights;
  return call_.fused() && side_by_side(w.q_proj, w.k_proj, w.v_proj) &&
         side_by_side(w.q_bias, w.k_bias, w.v_bias);
}

Status ModuleGradients::project_back(bool key_given, bool value_given) const {
  // A missing key is the query, and a missing value is the key: add its gradient there.
  const Tensor& d_query = gradients_.d_query;
  const Tensor& d_key = key_given ? gradients_.d_key : d_query;
  const Tensor& d_value = value_given ? gradients_.d_value : d_key;
  if (call_.latent()) return project_latent_back(d_query, d_key, !key_given);
  const auto& weights = call_.weights;
  const auto& w = gradients_.weights;
  if (!key_given && !value_given && fused()) {
    Sequence<float> d_all = d_q_;
    d_all.width = call_.q_width() + call_.k_width() + call_.v_width();
    const ConstTensor weight{weights.q_proj.data, {d_all.width, call_.config.embed_dim}};
    return matrix_back({.x = call_.query,
                        .weight = weight,
                        .d_y = d_all,
                        .d_x = gradient_of(d_query),
                        .d_weight = joined(w.q_proj, w.k_proj, w.v_proj),
                        .d_bias = joined(w.q_bias, w.k_bias, w.v_bias)});
  }
  const ProjectBackward calls[] = {
      {.x = call_.query,
       .weight = weights.q_proj,
       .d_y = d_q_,
       .d_x = gradient_of(d_query),
       .d_weight = w.q_proj,
       .d_bias = w.q_bias},
      {.x = call_.key,
       .weight = weights.k_proj,
       .d_y = call_.given(d_k_),
       .d_x = gradient_of(d_key),
       .adds_to_d_x = !key_given,
       .d_weight = w.k_proj,
       .d_bias = w.k_bias},
      {.x = call_.value,
       .weight = weights.v_proj,
       .d_y = call_.given(d_v_),
       .d_x = gradient_of(d_value),
       .adds_to_d_x = !value_given,
       .d_weight = w.v_proj,
       .d_bias = w.v_bias},
  };
  for (const ProjectBackward& call : calls) {
    MULTIHEAD_TRY(matrix_back(call));
  }
  return {};
}

Status ModuleGradients::project_latent_back(const Tensor& d_query, const Tensor& d_key,
                                            bool adds_to_d_key) const {
  const MultiHeadAttentionConfig& c = call_.config;
  const MultiHeadAttentionWeights& weights = call_.weights;
  const auto& w = gradients_.weights;
  Context& context = call_.context;
  const auto norm_back = [&](const Sequence<float>& plain, const ConstTensor& gain,
                             const Sequence<float>& d, const Tensor& d_gain) {
    return engine::norm_backward({.x = plain.data,
                                  .weight = gain.data,
                                  .d_y = d.data,
                                  .d_x = d.data,
                                  .adds_to_d_x = false,
                                  .d_weight = d_gain.data,
                                  .d_bias = nullptr,
                                  .rows = plain.batch * plain.tokens,
                                  .width = plain.width,
                                  .eps = c.latent_norm_eps,
                                  .centered = false},
                                 context);
  };
  if (c.q_latent_dim == 0) {
    MULTIHEAD_TRY(matrix_back({.x = call_.query,
                               .weight = weights.q_proj,
                               .d_y = d_q_,
                               .d_x = gradient_of(d_query),
                               .d_weight = w.q_proj}));
  } else {
    MULTIHEAD_TRY(matrix_back({.x = call_.q_latent,
                               .weight = weights.q_b_proj,
                               .d_y = d_q_,
                               .d_x = d_q_latent_,
                               .d_weight = w.q_b_proj}));
    MULTIHEAD_TRY(norm_back(call_.plain_q_latent, weights.q_a_norm, d_q_latent_, w.q_a_norm));
    MULTIHEAD_TRY(matrix_back({.x = call_.query,
                               .weight = weights.q_a_proj,
                               .d_y = d_q_latent_,
                               .d_x = gradient_of(d_query),
                               .d_weight = w.q_a_proj,
                               .d_bias = w.q_a_bias}));
  }

  // Each head's rows of kv_b_proj are the rows of its key, then the rows of its value.
  const int64_t nope = c.head_dim - c.rope_head_dim;
  const Tensor d_k = d_k_.heads(c.num_heads), d_expanded = d_expanded_.heads(c.num_heads);
  engine::copy_rows(columns_of(d_k, 0, nope), columns_of(d_expanded, 0, nope), context);
  engine::copy_rows(d_v_.heads(c.num_heads), columns_of(d_expanded, nope, c.value_dim), context);
  MULTIHEAD_TRY(matrix_back({.x = call_.compressed_kv.columns(0, c.kv_latent_dim),
                             .weight = weights.kv_b_proj,
                             .d_y = d_expanded_,
                             .d_x = d_kv_latent_,
                             .d_weight = w.kv_b_proj}));
  MULTIHEAD_TRY(norm_back(call_.plain_kv_latent, weights.kv_a_norm, d_kv_latent_, w.kv_a_norm));
  engine::copy_rows(d_kv_latent_.heads(1), d_compressed_kv_.columns(0, c.kv_latent_dim).heads(1),
                    context);
  // All heads share the last rope_head_dim numbers of a key: sum their gradients.
  const Sequence<float> d_rope = d_compressed_kv_.columns(c.kv_latent_dim, c.rope_head_dim);
  for (int64_t b = 0; b < d_rope.batch; ++b) {
    for (int64_t n = 0; n < d_rope.tokens; ++n) {
      const float* from = d_k_.token(b, n) + nope;
      float* const to = d_rope.token(b, n);
      std::copy_n(from, c.rope_head_dim, to);
      for (int64_t h = 1; h < c.num_heads; ++h) {
        for (int64_t i = 0; i < c.rope_head_dim; ++i) to[i] += from[h * c.head_dim + i];
      }
    }
  }
  return matrix_back({.x = call_.key,
                      .weight = weights.kv_a_proj,
                      .d_y = d_compressed_kv_,
                      .d_x = gradient_of(d_key),
                      .adds_to_d_x = adds_to_d_key,
                      .d_weight = w.kv_a_proj,
                      .d_bias = w.kv_a_bias});
}

}  // namespace multihead::nn
