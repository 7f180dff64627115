#include "nn/module_run.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "engine/threads.h"
#include "engine/transform.h"
#include "nn/latent_module.h"
#include "rules/visibility.h"

namespace multihead::nn {
namespace {

using engine::Message;
using engine::Name;

std::span<const float> span_of(const ConstTensor& tensor) {
  if (!tensor.given()) return {};
  return {tensor.data, static_cast<size_t>(tensor.shape.elements())};
}

// The last `count` columns of every head.
Tensor last_columns(Tensor heads, int64_t count) {
  heads.data += heads.shape[3] - count;
  heads.shape[3] = count;
  return heads;
}

}  // namespace

AttentionOptions joined_options(const MultiHeadAttentionConfig& config,
                                const MultiHeadAttentionWeights& weights,
                                const MultiHeadAttentionOptions& options) {
  AttentionOptions joined = options.attention;
  // Not given(): a side that is wrong is to be refused.
  if (joined.window.left == -1 && joined.window.right == -1) {
    joined.window.left = config.window.left;
    joined.window.right = config.window.right;
  }
  if (joined.softcap == 0.0F) joined.softcap = config.softcap;
  if (joined.sinks.empty()) joined.sinks = span_of(weights.sinks);
  if (config.qk_norm && !joined.qk_norm.enabled) {
    joined.qk_norm = {.q_gain = span_of(weights.q_norm),
                      .k_gain = span_of(weights.k_norm),
                      .epsilon = config.qk_norm_eps,
                      .enabled = true};
  }
  if (joined.rope.style == Rope::Style::kNone) {
    joined.rope.style = config.rope.style;
    joined.rope.base = config.rope.base;
    joined.rope.rotary_dim = config.rope.rotary_dim;
  }
  if (options.training && joined.dropout.probability == 0.0F) {
    joined.dropout = {config.dropout, options.dropout_seed};
  }
  const HeadTools& tools = options.heads;
  if (!joined.scale) {
    const int64_t width = tools.scale_by_embed_dim ? config.embed_dim : config.head_dim;
    joined.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
  }
  // Else the very bits of the scale.
  if (tools.temperature != 1.0F) *joined.scale /= tools.temperature;
  return joined;
}

Status validate_head_tools(const HeadTools& tools, const MultiHeadAttentionConfig& config) {
  if (!tools.head_scales.empty() &&
      static_cast<int64_t>(tools.head_scales.size()) != config.num_heads) {
    return engine::shape_error(Name::kHeadScales, Message::kValuePerHead, config.num_heads,
                               static_cast<int64_t>(tools.head_scales.size()));
  }
  for (const float factor : tools.head_scales) {
    if (!std::isfinite(factor)) {
      return engine::real_error(Name::kHeadScales, Message::kFiniteNumbers, factor);
    }
  }
  if (!(tools.temperature > 0.0F) || std::isinf(tools.temperature)) {
    return engine::real_error(Name::kTemperature, Message::kFinitePositive, tools.temperature);
  }
  return {};
}

Status Arena::reserve(engine::Buffer& buffer) {
  const auto bytes = bytes_ < 0x1p62 ? static_cast<uint64_t>(bytes_) : uint64_t{1} << 62U;
  if (!buffer.reserve(bytes + kAlignment)) return Status::out_of_memory(bytes);
  next_ = static_cast<char*>(buffer.data());
  return {};
}

void* Arena::take(int64_t bytes) {
  char* const taken = next_;
  next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return taken;
}

void mean_over_heads(const ConstTensor& weights, const Tensor& mean, Context& context) {
  const int64_t heads = weights.shape[1], rows = weights.shape[2], keys = weights.shape[3];
  const auto factor = static_cast<float>(1.0 / static_cast<double>(heads));
  engine::parallel_for(context.threads(), weights.shape[0] * rows, [&](int64_t job, int) {
    const int64_t b = job / rows, i = job % rows;
    const float* from = weights.data + b * weights.strides[0] + i * weights.strides[2];
    float* const to = mean.data + b * mean.strides[0] + i * mean.strides[1];
    std::copy_n(from, keys, to);
    for (int64_t h = 1; h < heads; ++h) {
      from += weights.strides[1];
      for (int64_t j = 0; j < keys; ++j) to[j] += from[j];
    }
    for (int64_t j = 0; j < keys; ++j) to[j] *= factor;
  });
}

double ModuleRun::trace_floats(int64_t keys) const {
  const int64_t b = query.batch, n = query.tokens, given = key.tokens;
  // Scores alone may be more than 64 bits count: keys that share memory are many for nothing.
  const double scores = static_cast<double>(b * n) * static_cast<double>(config.num_heads) *
                        static_cast<double>(keys);
  const bool absorbs = absorbed_keys != nullptr;
  const struct {
    const char* name;
    int64_t floats;
  } steps[] = {{"x", b * n * config.embed_dim},
               {"x_key", self ? 0 : b * given * config.kdim},
               {"x_value", self ? 0 : b * given * config.vdim},
               {"q_latent", b * n * config.q_latent_dim},
               {"kv_latent", b * given * config.kv_latent_dim},
               {"k_rope", b * given * config.rope_head_dim},
               {"q", b * n * q_width()},
               {"k", absorbs ? 0 : b * given * k_width()},
               {"v", absorbs ? 0 : b * given * v_width()},
               {"q_heads", b * n * (absorbs ? config.num_heads * kept_width() : q_width())},
               {"k_heads", b * (given + appended) * (absorbs ? kept_width() : k_width())},
               {"v_heads", b * (given + appended) * (absorbs ? config.kv_latent_dim : v_width())},
               {"latent_out", absorbs ? b * n * config.num_heads * config.kv_latent_dim : 0},
               {"heads_out", b * n * merged_width()},
               {"merged", b * n * merged_width()},
               {"head_shares", projects() ? b * config.num_heads * n * out_width() : 0},
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

// One product makes all three where the weights lie side by side, as in_proj_weight has them.
bool ModuleRun::fused() const {
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

void ModuleRun::count(Arena& arena) const {
  const int64_t queries = query.batch * query.tokens;
  const int64_t keys = query.batch * (key.tokens + appended);
  arena.count_floats(queries * q_width() +
                     (absorbed_keys == nullptr ? keys * (k_width() + v_width()) : 0));
  // Alignment of the three.
  arena.count(128);
  if (projects()) arena.count_floats(queries * merged_width());
  if (latent()) count_latent(arena);
}

void ModuleRun::take(Arena& arena) {
  const int64_t queries = query.batch * query.tokens;
  if (fused()) {
    const int64_t width = q_width() + k_width() + v_width();
    const Sequence<float> all = laid_out_like(arena.take_floats(queries * width), query, width);
    q = all.columns(0, q_width());
    k = all.columns(q_width(), k_width());
    v = all.columns(q_width() + k_width(), v_width());
  } else {
    const auto rows_of = [&](const Sequence<const float>& like, int64_t width) {
      const int64_t tokens = like.tokens + appended;
      float* const to = arena.take_floats(like.batch * tokens * width);
      return appended == 0 ? laid_out_like(to, like, width)
                           : contiguous_sequence(to, like.batch, tokens, width);
    };
    q = laid_out_like(arena.take_floats(queries * q_width()), query, q_width());
    if (absorbed_keys == nullptr) {
      k = rows_of(key, k_width());
      v = rows_of(value, v_width());
    }
  }
  if (latent()) take_latent(arena);
  // Without an output projection the merged heads are the output itself.
  merged = projects()
               ? laid_out_like(arena.take_floats(queries * merged_width()), query, merged_width())
               : out;
}

Status ModuleRun::project_inputs() const {
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

void ModuleRun::trace_inputs() const {
  tracer.add_sequence("x", query);
  if (!self) {
    tracer.add_sequence("x_key", key);
    tracer.add_sequence("x_value", value);
  }
  if (config.q_latent_dim > 0) tracer.add_sequence("q_latent", q_latent);
  if (latent()) tracer.add_sequence("kv_latent", kept.columns(0, config.kv_latent_dim));
  if (config.rope_head_dim > 0) {
    tracer.add_sequence("k_rope", kept.columns(config.kv_latent_dim, config.rope_head_dim));
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

Status ModuleRun::transform(AttentionOptions& options) const {
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

void ModuleRun::append() const {
  for (const auto& [rows, bias] : {std::pair{&k, &weights.bias_k}, {&v, &weights.bias_v}}) {
    for (int64_t b = 0; b < rows->batch; ++b) {
      int64_t token = rows->tokens - appended;
      if (config.add_bias_kv) std::copy_n(bias->data, rows->width, rows->token(b, token++));
      if (config.add_zero_attn) std::fill_n(rows->token(b, token), rows->width, 0.0F);
    }
  }
}

Tensor ModuleRun::q_heads() const {
  return (absorbed_keys == nullptr ? q : absorbed_q).heads(config.num_heads);
}

Tensor ModuleRun::k_heads() const {
  return absorbed_keys == nullptr ? k.heads(config.num_kv_heads) : kept.heads(1);
}

Tensor ModuleRun::v_heads() const {
  return absorbed_keys == nullptr ? v.heads(config.num_kv_heads)
                                  : kept.columns(0, config.kv_latent_dim).heads(1);
}

Tensor ModuleRun::attended_heads() const {
  return (absorbed_keys == nullptr ? merged : latent_out).heads(config.num_heads);
}

void ModuleRun::trace_heads() const {
  tracer.add_heads("q_heads", q_heads());
  tracer.add_heads("k_heads", k_heads());
  tracer.add_heads("v_heads", v_heads());
}

Status ModuleRun::finish() const {
  tracer.add_heads("heads_out", merged.heads(config.num_heads));
  if (!tools.head_scales.empty()) {
    for (int64_t b = 0; b < merged.batch; ++b) {
      for (int64_t n = 0; n < merged.tokens; ++n) {
        float* to = merged.token(b, n);
        for (const float factor : tools.head_scales) {
          for (int64_t c = 0; c < config.value_dim; ++c, ++to) {
            // Muted by selection: 0 times a NaN would not be.
            *to = factor == 0.0F ? 0.0F : *to * factor;
          }
        }
      }
    }
  }
  tracer.add_sequence("merged", merged);
  if (projects()) {
    const int64_t width = config.value_dim;
    if (tracer.wants("head_shares")) {
      const Tensor shares =
          tracer.add("head_shares", {merged.batch, config.num_heads, merged.tokens, out_width()});
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
