#include "nn/attention/module_call.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

#include "cpu/elementwise/gradients.h"
#include "engine/attention/transform.h"
#include "engine/layers/elementwise.h"
#include "nn/attention/latent.h"
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
  const int64_t n = query.tokens, given = key.tokens;
  const bool absorbs = absorbed_keys != nullptr;
  const struct {
    const char* name;
    int64_t tokens, floats;  // tokens per batch entry, floats per token
  } steps[] = {{"x", n, config.embed_dim},
               {"x_key", self ? 0 : given, config.kdim},
               {"x_value", self ? 0 : given, config.vdim},
               {"q_latent", n, config.q_latent_dim},
               {"kv_latent", given, config.kv_latent_dim},
               {"k_rope", given, config.rope_head_dim},
               {"q", n, q_width()},
               {"k", absorbs ? 0 : given, k_width()},
               {"v", absorbs ? 0 : given, v_width()},
               {"q_heads", n, absorbs ? config.num_heads * compressed_kv_width() : q_width()},
               {"k_heads", given + appended, absorbs ? compressed_kv_width() : k_width()},
               {"v_heads", given + appended, absorbs ? config.kv_latent_dim : v_width()},
               {"latent_out", absorbs ? n : 0, config.num_heads * config.kv_latent_dim},
               {"heads_out", n, merged_width()},
               {"merged", n, merged_width()},
               {"per_head_output", projects() ? n : 0, config.num_heads * out_width()},
               {"output", n, out_width()}};
  // double, because with inputs of stride 0 the number of floats may exceed 64 bits.
  double floats = 0;
  const auto add = [&](const char* name, int64_t tokens, int64_t width) {
    if (!tracer.wants(name)) return;
    floats +=
        static_cast<double>(query.batch) * static_cast<double>(tokens) * static_cast<double>(width);
  };
  for (const auto& [name, tokens, width] : steps) add(name, tokens, width);
  for (const char* name : {"scores", "scaled_scores", "masked_scores", "weights"}) {
    add(name, n, config.num_heads * keys);
  }
  return floats;
}

bool ModuleCall::fused() const {
  const MultiHeadAttentionWeights& w = weights;
  const int64_t width = config.embed_dim;
  if (!self || appended > 0 || latent() || config.kdim != width || config.vdim != width)
    return false;
  const bool biased = w.q_bias.given() && w.k_bias.given() && w.v_bias.given();
  if (!biased && (w.q_bias.given() || w.k_bias.given() || w.v_bias.given())) return false;
  // The check of shape[0] excludes shares: in a team, a member may hold only some rows, see
  // nn/parameters.h.
  const auto dense = [&](const ConstTensor& t, int64_t rows) {
    return t.shape[0] == rows && t.strides[0] == width;
  };
  return dense(w.q_proj, q_width()) && dense(w.k_proj, k_width()) && dense(w.v_proj, v_width()) &&
         w.k_proj.data == w.q_proj.data + q_width() * width &&
         w.v_proj.data == w.k_proj.data + k_width() * width &&
         (!biased || (w.k_bias.data == w.q_bias.data + q_width() &&
                      w.v_bias.data == w.k_bias.data + k_width()));
}

void ModuleCall::lay_out_heads(rules::Arena& take, Sequence<float>& q_rows, Sequence<float>& k_rows,
                               Sequence<float>& v_rows) const {
  if (fused()) {
    const Sequence<float> all = sequence_like(query, q_width() + k_width() + v_width(), take);
    q_rows = all.columns(0, q_width());
    k_rows = all.columns(q_width(), k_width());
    v_rows = all.columns(q_width() + k_width(), v_width());
    return;
  }
  q_rows = sequence_like(query, q_width(), take);
  if (absorbed_keys != nullptr) return;
  for (const auto& [rows, like, width] :
       {std::tuple{&k_rows, &key, k_width()}, {&v_rows, &value, v_width()}}) {
    float* data = nullptr;
    take(data, saturated_elements({like->batch, like->tokens + appended, width}));
    *rows = appended == 0 ? laid_out_like(data, *like, width)
                          : contiguous_sequence(data, like->batch, like->tokens + appended, width);
  }
}

void ModuleCall::lay_out(rules::Arena& take) {
  lay_out_heads(take, q, k, v);
  if (latent()) lay_out_latent(take);
  const bool scales = !interventions.head_scales.empty();
  if (keeps) {
    take(lse, saturated_elements({query.batch, config.num_heads, query.tokens}));
    attended = sequence_like(query, merged_width(), take);
    merged = scales ? sequence_like(query, merged_width(), take) : attended;
    if (normalizes) {
      plain_q = sequence_like(query, q_width(), take);
      plain_k = sequence_like(key, k_width(), take);
    }
  } else {
    // Without an output projection and dropout, `out` itself holds the merged heads.
    attended = projects() || drops() ? sequence_like(query, merged_width(), take) : out;
    merged = attended;
  }
  if (!drops()) return;
  float* data = nullptr;
  take(data, saturated_elements({query.batch, query.tokens, out_width()}));
  undropped = contiguous_sequence(data, query.batch, query.tokens, out_width());
}

KeptCall ModuleCall::kept_call(const engine::AttentionShape& shape) {
  rules::Arena size(nullptr);
  lay_out(size);
  return {.shape = shape, .bytes = size.bytes()};
}

bool ModuleCall::projects_own_heads(const engine::Team& team) const {
  const int64_t heads = config.num_kv_heads;
  return !latent() && !fused() && team.computes_own(heads, q_width()) &&
         team.computes_own(heads, k_width()) && team.computes_own(heads, v_width());
}

Status ModuleCall::project_inputs() const {
  if (latent()) return project_latent();
  if (fused()) {
    const int64_t width = q_width() + k_width() + v_width();
    Sequence<float> all = q;
    all.width = width;
    const ConstTensor weight{weights.q_proj.data, {width, config.embed_dim}};
    const ConstTensor bias =
        weights.q_bias.given() ? ConstTensor(weights.q_bias.data, {width}) : ConstTensor();
    MULTIHEAD_TRY(project(query, weight, bias, all, context, precision));
  } else {
    MULTIHEAD_TRY(project(query, weights.q_proj, weights.q_bias, q, context, precision));
    MULTIHEAD_TRY(project(key, weights.k_proj, weights.k_bias, given(k), context, precision));
    return project(value, weights.v_proj, weights.v_bias, given(v), context, precision);
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
  tracer.add_sequence("k", given(k));
  tracer.add_sequence("v", given(v));
}

engine::InputTransforms ModuleCall::transforms(const AttentionOptions& options) const {
  return {.q = transformed_columns(q, config.num_heads),
          .k = transformed_keys(),
          .norm = options.qk_norm,
          .rope = options.rope,
          .positions = rules::make_visibility(options, query.tokens, key.tokens),
          .lengths = options.kv_lengths};
}

Tensor ModuleCall::transformed_columns(const Sequence<float>& rows, int64_t heads) const {
  return last_columns(rows.heads(heads), transformed_width(config));
}

Tensor ModuleCall::transformed_keys() const {
  return absorbed_keys != nullptr ? last_columns(k_heads(), transformed_width(config))
                                  : transformed_columns(given(k), config.num_kv_heads);
}

Status ModuleCall::transform(AttentionOptions& options) const {
  const engine::InputTransforms inputs = transforms(options);
  options.qk_norm = {};
  options.rope = {};
  if (inputs.query_transform().does_nothing()) return {};
  if (plain_q.data != nullptr) {
    engine::copy_rows(q.heads(1), plain_q.heads(1), context);
    engine::copy_rows(given(k).heads(1), plain_k.heads(1), context);
  }
  const Tensor queries = transformed_columns(q, config.num_heads);
  MULTIHEAD_TRY(engine::transform_rows(queries, inputs.query_transform(), queries, context));
  const Tensor keys = transformed_keys();
  return engine::transform_rows(keys, inputs.key_transform(), keys, context);
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
  return (absorbed_keys == nullptr ? attended : latent_out).heads(config.num_heads);
}

Tensor ModuleCall::lse_tensor() const {
  if (lse == nullptr) return {};
  return {lse, {query.batch, config.num_heads, query.tokens}};
}

void ModuleCall::trace_heads() const {
  tracer.add_heads("q_heads", q_heads());
  tracer.add_heads("k_heads", k_heads());
  tracer.add_heads("v_heads", v_heads());
}

void ModuleCall::scale_heads() const {
  if (interventions.head_scales.empty()) return;
  if (merged.data != attended.data) {
    engine::copy_rows(attended.heads(1), merged.heads(1), context);
  }
  engine::scale_heads(merged.heads(config.num_heads), interventions.head_scales, context);
}

void ModuleCall::drop_out(const Sequence<float>& rows) const {
  const cpu::DropRows call{
      .a = nullptr, .x = rows.data, .y = rows.data, .width = rows.width, .dropout = out_dropout};
  engine::over_rows(call, rows.batch * rows.tokens, rows.width, cpu::drop_rows, context);
}

Status ModuleCall::finish() const {
  tracer.add_heads("heads_out", attended.heads(config.num_heads));
  scale_heads();
  tracer.add_sequence("merged", merged);
  const Sequence<float>& to = drops() ? undropped : out;
  if (projects()) {
    const int64_t width = config.value_dim;
    if (tracer.wants("per_head_output")) {
      const Tensor shares = tracer.add(
          "per_head_output", {merged.batch, config.num_heads, merged.tokens, out_width()});
      for (int64_t b = 0; b < merged.batch; ++b) {
        for (int64_t h = 0; h < config.num_heads; ++h) {
          const ConstTensor weight{weights.out_proj.data + h * width,
                                   {weights.out_proj.shape[0], width},
                                   weights.out_proj.strides};
          MULTIHEAD_TRY(linear(
              {merged.token(b, 0) + h * width, {merged.tokens, width}, {merged.token_stride, 1}},
              weight, {},
              {shares.data + b * shares.strides[0] + h * shares.strides[1],
               {merged.tokens, out_width()}},
              context, precision));
        }
      }
    }
    MULTIHEAD_TRY(project(merged, weights.out_proj, weights.out_bias, to, context, precision));
  } else if (merged.data != to.data) {
    engine::copy_rows(merged.heads(1), to.heads(1), context);
  }
  if (drops()) {
    drop_out(to);
    engine::copy_rows(to.heads(1), out.heads(1), context);
  }
  tracer.add_sequence("output", out);
  tracer.end();
  return {};
}

}  // namespace multihead::nn

template class multihead::Activations<multihead::nn::KeptAttention>;
