#include "nn/latent_module.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/threads.h"
#include "engine/validate.h"
#include "multihead/elementwise.h"
#include "nn/module_run.h"

namespace multihead::nn {
namespace {

using engine::Message;
using engine::Name;
using engine::option_error;
using engine::real_error;

int64_t own_width(const MultiHeadAttentionConfig& c) { return c.head_dim - c.rope_head_dim; }

}  // namespace

Status validate_latent_config(const MultiHeadAttentionConfig& c) {
  if (c.kv_latent_dim == 0) {
    for (const auto& [name, value] :
         {std::pair{Name::kQLatentDim, c.q_latent_dim}, {Name::kRopeHeadDim, c.rope_head_dim}}) {
      if (value == 0) continue;
      return option_error(name, Message::kZeroWithoutLatent, value);
    }
    return {};
  }
  if (c.rope_head_dim >= c.head_dim) {
    return option_error(Name::kRopeHeadDim, Message::kBelowHeadDim, c.head_dim, c.rope_head_dim);
  }
  if (c.num_kv_heads != c.num_heads) {
    return option_error(Name::kNumKvHeads, Message::kHeadsOfLatent, c.num_heads, c.num_kv_heads);
  }
  for (const auto& [name, value] : {std::pair{Name::kKdim, c.kdim}, {Name::kVdim, c.vdim}}) {
    if (value == c.embed_dim) continue;
    return option_error(name, Message::kWidthWithLatent, c.embed_dim, value);
  }
  for (const auto& [name, given] : {std::pair{Name::kAddBiasKv, c.add_bias_kv},
                                    {Name::kAddZeroAttn, c.add_zero_attn},
                                    {Name::kQkNorm, c.qk_norm}}) {
    if (given) return option_error(name, Message::kFalseWithLatent);
  }
  if (!(c.latent_norm_eps >= 0.0F) || c.latent_norm_eps > 1.0F) {
    return real_error(Name::kLatentNormEps, Message::kZeroToOne, c.latent_norm_eps);
  }
  AttentionOptions options;
  options.rope = c.rope;
  return validate_latent_options(c, options);
}

Status validate_latent_options(const MultiHeadAttentionConfig& c, const AttentionOptions& options) {
  if (c.kv_latent_dim == 0) return {};
  if (options.qk_norm.enabled) {
    return option_error(Name::kQkNorm, Message::kNormWithLatent);
  }
  if (options.rope.style != Rope::Style::kNone && c.rope_head_dim == 0) {
    return option_error(Name::kRope, Message::kRopeWithLatent);
  }
  return {};
}

Status make_absorbed_keys(const MultiHeadAttentionConfig& c, const ConstTensor& kv_b_proj,
                          std::shared_ptr<const engine::Buffer>& absorbed_keys) {
  const int64_t own = own_width(c), rank = c.kv_latent_dim, stride = kv_b_proj.strides[0];
  auto made = std::make_shared<engine::Buffer>();
  const uint64_t bytes = static_cast<uint64_t>(c.num_heads) * static_cast<uint64_t>(own) *
                         static_cast<uint64_t>(rank) * sizeof(float);
  if (!made->reserve(bytes)) return Status::out_of_memory(bytes);
  auto* to = static_cast<float*>(made->data());
  for (int64_t h = 0; h < c.num_heads; ++h) {
    const float* const rows = kv_b_proj.data + h * (own + c.value_dim) * stride;
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t row = 0; row < own; ++row) *to++ = rows[row * stride + r];
    }
  }
  absorbed_keys = std::move(made);
  return {};
}

void ModuleRun::count_latent(Arena& arena) const {
  const int64_t queries = query.batch * query.tokens, keys = key.batch * key.tokens;
  const int64_t heads = config.num_heads;
  arena.count_floats(queries * config.q_latent_dim);
  arena.count_floats(keys * kept_width());
  if (absorbed_keys == nullptr) {
    arena.count_floats(keys * heads * (own_width(config) + config.value_dim));
    return;
  }
  arena.count_floats(queries * heads * kept_width());
  arena.count_floats(queries * heads * config.kv_latent_dim);
}

void ModuleRun::take_latent(Arena& arena) {
  const int64_t heads = config.num_heads;
  const auto rows = [&](const Sequence<const float>& like, int64_t width) {
    return laid_out_like(arena.take_floats(like.batch * like.tokens * width), like, width);
  };
  q_latent = rows(query, config.q_latent_dim);
  kept = rows(key, kept_width());
  if (absorbed_keys == nullptr) {
    expanded = rows(key, heads * (own_width(config) + config.value_dim));
    return;
  }
  absorbed_q = rows(query, heads * kept_width());
  latent_out = rows(query, heads * config.kv_latent_dim);
}

Status ModuleRun::project_latent() const {
  // The first columns of every row, in place.
  const auto normalise = [&](const Sequence<float>& rows, int64_t columns,
                             const ConstTensor& gain) {
    const Tensor tokens(rows.data, {rows.batch * rows.tokens, columns}, {rows.width, 1});
    return rms_norm(tokens, gain, config.latent_norm_eps, tokens, context);
  };
  if (config.q_latent_dim == 0) {
    if (Status status = project(query, weights.q_proj, {}, q, context); !status.ok()) return status;
  } else {
    Status status = project(query, weights.q_a_proj, weights.q_a_bias, q_latent, context);
    if (status.ok()) status = normalise(q_latent, config.q_latent_dim, weights.q_a_norm);
    if (status.ok()) status = project(q_latent, weights.q_b_proj, {}, q, context);
    if (!status.ok()) return status;
  }
  const Sequence<float> latent = kept.columns(0, config.kv_latent_dim);
  Status status = project(key, weights.kv_a_proj, weights.kv_a_bias, kept, context);
  if (status.ok()) status = normalise(kept, config.kv_latent_dim, weights.kv_a_norm);
  if (!status.ok() || absorbed_keys != nullptr) return status;

  status = project(latent, weights.kv_b_proj, {}, expanded, context);
  if (!status.ok()) return status;
  const int64_t own = own_width(config), value_width = config.value_dim;
  engine::parallel_for(context.threads(), key.batch * key.tokens, [&](int64_t job, int) {
    const int64_t b = job / key.tokens, n = job % key.tokens;
    const float* from = expanded.token(b, n);
    const float* const shared = kept.token(b, n) + config.kv_latent_dim;
    float *to_key = k.token(b, n), *to_value = v.token(b, n);
    for (int64_t h = 0; h < config.num_heads; ++h) {
      to_key = std::copy_n(from, own, to_key);
      to_key = std::copy_n(shared, config.rope_head_dim, to_key);
      to_value = std::copy_n(from + own, value_width, to_value);
      from += own + value_width;
    }
  });
  return {};
}

Status ModuleRun::absorb_queries() const {
  const int64_t own = own_width(config), rank = config.kv_latent_dim;
  for (int64_t h = 0; h < config.num_heads; ++h) {
    const ConstTensor weight(absorbed_keys + h * rank * own, {rank, own});
    const Sequence<float> from = q.columns(h * config.head_dim, config.head_dim);
    const Sequence<float> to = absorbed_q.columns(h * kept_width(), kept_width());
    Status status = project(from.columns(0, own), weight, {}, to.columns(0, rank), context);
    if (!status.ok()) return status;
    for (int64_t b = 0; b < q.batch; ++b) {
      for (int64_t n = 0; n < q.tokens; ++n) {
        std::copy_n(from.token(b, n) + own, config.rope_head_dim, to.token(b, n) + rank);
      }
    }
  }
  return {};
}

Status ModuleRun::expand_values() const {
  tracer.add_heads("latent_out", latent_out.heads(config.num_heads));
  const int64_t own = own_width(config), width = config.value_dim, rank = config.kv_latent_dim;
  const ConstTensor& all = weights.kv_b_proj;
  for (int64_t h = 0; h < config.num_heads; ++h) {
    const ConstTensor weight(all.data + (h * (own + width) + own) * all.strides[0], {width, rank},
                             all.strides);
    Status status = project(latent_out.columns(h * rank, rank), weight, {},
                            merged.columns(h * width, width), context);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace multihead::nn
