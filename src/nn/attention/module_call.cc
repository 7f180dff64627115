#include "nn/attention/module_call.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/elementwise.h"
#include "engine/transform.h"
#include "nn/attention/latent_module.h"
#include "nn/call_memory.h"
#include "rules/visibility.h"

namespace multihead::nn {
namespace {

Tensor last_columns(Tensor heads, int64_t count) {
  heads.data += heads.shape[3] - count;
  heads.shape[3] = count;
  return heads;
}

}  // namespace

double ModuleCall::trace_floats(int64_t keys) const {
  const int64_t b = query.batch, n = query.tokens, given = key.tokens;
  // A double: with keys of stride 0 the number of scores may exceed 64 bits.
  const double scores = static_cast<double>(b * n) * static_cast<double>(config.num_heads) *
                        static_cast<double>(keys);
  const bool absorbs = absorbed_keys != nullptr;
  const struct {
    const char* name;
    int64_t floats;
  } steps[] = {
      {"x", b * n * config.embed_dim},
      {"x_key", self ? 0 : b * given * config.kdim},
      {"x_value", self ? 0 : b * given * config.vdim},
      {"q_latent", b * n * config.q_latent_dim},
      {"kv_latent", b * given * config.kv_latent_dim},
      {"k_rope", b * given * config.rope_head_dim},
      {"q", b * n * q_width()},
      {"k", absorbs ? 0 : b * given * k_width()},
      {"v", absorbs ? 0 : b * given * v_width()},
      {"q_heads", b * n * (absorbs ? config.num_heads * compressed_kv_width() : q_width())},
      {"k_heads", b * (given + appended) * (absorbs ? compressed_kv_width() : k_width())},
      {"v_heads", b * (given + appended) * (absorbs ? config.kv_latent_dim : v_width())},
      {"latent_out", absorbs ? b * n * config.num_heads * config.kv_latent_dim : 0},
      {"heads_out", b * n * merged_width()},
      {"merged", b * n * merged_width()},
      {"per_head_output", projects() ? b * config.num_heads * n * out_width() : 0},
      {"output", b * n * out_width()}};
  double floats = 0;
  for (const auto& [name, count_of] : steps) {
    if (tracer.wants(name)) floats += static_cast<double>(count_of);
  }
  for (const char* name : {"scores", "scaled_scores", "masked_scores", "weights"}) {
    if (tracer.wants(name)) floats += scores;
  }
  return floats;
}

// Whether q, k and v come from one product: their weights lie side by side, as in in_proj_weight.
bool ModuleCall::fused() const {
  const MultiHeadAttentionWeights& w = weights;
  const int64_t width = config.embed_dim;
  if (!self || appended > 0 || latent() || config.kdim != width || config.vdim != width)
    return false;
  const bool biased = w.q_bias.given() && w.k_bias.given() && w.v_bias.given();
  if (!biased && (w.q_bias.given() || w.k_bias.given() || w.v_bias.given())) return false;
  const auto rows = [&](const ConstTensor& t) { return t.strides[0] == width; };
  return rows(w.q_proj) && rows(w.k_proj) && rows(w.v_proj) &&
         w.k_proj.data == w.q_proj.data + q_width() * width &&
         w.v_proj.data == w.k_proj.data + k_width() * width &&
         (!biased || (w.k_bias.data == w.q_bias.data + q_width() &&
                      w.v_bias.data == w.k_bias.data + k_width()));
}

void ModuleCall::lay_out(rules::Arena& take) {
  const auto rows = [&](const Sequence<const float>& like, int64_t width) {
    float* data = nullptr;
    take(data, saturated_elements({like.batch, like.tokens + appended, width}));
    return appended == 0 ? laid_out_like(data, like, width)
                         : contiguous_sequence(data, like.batch, like.tokens + appended, width);
  };
  if (fused()) {
    const Sequence<float> all = sequence_like(query, q_width() + k_width() + v_width(), take);
    q = all.columns(0, q_width());
    k = all.columns(q_width(), k_width());
    v = all.columns(q_width() + k_width(), v_width());
  } else {
    q = sequence_like(query, q_width(), take);
    if (absorbed_keys == nullptr) {
      k = rows(key, k_width());
      v = rows(value, v_width());
    }
  }
  if (latent()) lay_out_latent(take);
  // Without an output projection the merged heads are the output itself.
  merged = projects() ? sequence_like(query, merged_width(), take) : out;
}

Status ModuleCall::project_inputs() const {
  if (latent()) return project_latent();
  const auto given = [&](Sequence<float> rows) {
    rows.tokens -= appended;
    return rows;
  };
  if (fused()) {
    const int64_t width = q_width() + k_width() + v_width();
    Sequence<float> all = q;
    all.width = width;
    const ConstTensor weight{weights.q_proj.data, {width, config.embed_dim}};
    const ConstTensor bias =
        weights.q_bias.given() ? ConstTensor(weights.q_bias.data, {width}) : ConstTensor();
    if (Status status = project(query, weight, bias, all, context); !status.ok()) return status;
  } else {
    Status status = project(query, weights.q_proj, weights.q_bias, q, context);
    if (status.ok()) status = project(key, weights.k_proj, weights.k_bias, given(k), context);
    if (status.ok()) status = project(value, weights.v_proj, weights.v_bias, given(v), context);
    return status;
  }
  return {};
}

void ModuleCall::trace_inputs() const {
  tracer.add_sequence("x", query);
  if (!self) {
    tracer.add_sequence("x_key", key);
    tracer.add_sequence("x_value", value);
  }
  if (config.q_latent_dim > 0) tracer.add_sequence("q_latent", q_latent);
  if (latent()) tracer.add_sequence("kv_latent", compressed_kv.columns(0, config.kv_latent_dim));
  if (config.rope_head_dim > 0) {
    tracer.add_sequence("k_rope",
                        compressed_kv.columns(config.kv_latent_dim, config.rope_head_dim));
  }
  tracer.add_sequence("q", q);
  if (absorbed_keys != nullptr) return;
  const auto given = [&](Sequence<float> rows) {
    rows.tokens = key.tokens;
    return rows;
  };
  tracer.add_sequence("k", given(k));
  tracer.add_sequence("v", given(v));
}

Status ModuleCall::transform(AttentionOptions& options) const {
  const QkNorm norm = options.qk_norm;
  const Rope rope = options.rope;
  options.qk_norm = {};
  options.rope = {};
  if (!norm.enabled && rope.style == Rope::Style::kNone) return {};
  const int64_t keys = key.tokens;
  const rules::Visibility rule = rules::make_visibility(options, query.tokens, keys);
  const int64_t width = transformed_width(config);
  const Tensor queries = last_columns(q.heads(config.num_heads), width);
  Sequence<float> given = k;
  given.tokens = keys;
  const Tensor key_heads =
      last_columns(absorbed_keys != nullptr ? k_heads() : given.heads(config.num_kv_heads), width);
  Status status = engine::transform_rows(queries,
                                         {.normalise = norm.enabled,
                                          .gain = norm.q_gain,
                                          .epsilon = norm.epsilon,
                                          .rope = rope,
                                          .positions = rope.q_positions,
                                          .query_positions = &rule},
                                         queries, context);
  if (!status.ok()) return status;
  return engine::transform_rows(key_heads,
                                {.normalise = norm.enabled,
                                 .gain = norm.k_gain,
                                 .epsilon = norm.epsilon,
                                 .rope = rope,
                                 .positions = rope.k_positions,
                                 .lengths = options.kv_lengths},
                                key_heads, context);
}

void ModuleCall::append() const {
  for (const auto& [rows, bias] : {std::pair{&k, &weights.bias_k}, {&v, &weights.bias_v}}) {
    for (int64_t b = 0; b < rows->batch; ++b) {
      int64_t token = rows->tokens - appended;
      if (config.add_bias_kv) std::copy_n(bias->data, rows->width, rows->token(b, token++));
      if (config.add_zero_attn) std::fill_n(rows->token(b, token), rows->width, 0.0F);
    }
  }
}

Tensor ModuleCall::q_heads() const {
  return (absorbed_keys == nullptr ? q : absorbed_q).heads(config.num_heads);
}

Tensor ModuleCall::k_heads() const {
  return absorbed_keys == nullptr ? k.heads(config.num_kv_heads) : compressed_kv.heads(1);
}

Tensor ModuleCall::v_heads() const {
  return absorbed_keys == nullptr ? v.heads(config.num_kv_heads)
                                  : compressed_kv.columns(0, config.kv_latent_dim).heads(1);
}

Tensor ModuleCall::attended_heads() const {
  return (absorbed_keys == nullptr ? merged : latent_out).heads(config.num_heads);
}

void ModuleCall::trace_heads() const {
  tracer.add_heads("q_heads", q_heads());
  tracer.add_heads("k_heads", k_heads());
  tracer.add_heads("v_heads", v_heads());
}

Status ModuleCall::finish() const {
  tracer.add_heads("heads_out", merged.heads(config.num_heads));
  if (!interventions.head_scales.empty()) {
    engine::scale_heads(merged.heads(config.num_heads), interventions.head_scales, context);
  }
  tracer.add_sequence("merged", merged);
  if (projects()) {
    const int64_t width = config.value_dim;
    if (tracer.wants("per_head_output")) {
      const Tensor shares = tracer.add(
          "per_head_output", {merged.batch, config.num_heads, merged.tokens, out_width()});
      for (int64_t b = 0; b < merged.batch; ++b) {
        for (int64_t h = 0; h < config.num_heads; ++h) {
          const ConstTensor weight{
              weights.out_proj.data + h * width, {config.out_dim, width}, weights.out_proj.strides};
          Status status = linear(
              {merged.token(b, 0) + h * width, {merged.tokens, width}, {merged.token_stride, 1}},
              weight, {},
              {shares.data + b * shares.strides[0] + h * shares.strides[1],
               {merged.tokens, out_width()}},
              context);
          if (!status.ok()) return status;
        }
      }
    }
    Status status = project(merged, weights.out_proj, weights.out_bias, out, context);
    if (!status.ok()) return status;
  }
  tracer.add_sequence("output", out);
  tracer.end();
  return {};
}

}  // namespace multihead::nn
