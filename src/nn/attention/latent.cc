#include "nn/attention/latent.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "multihead/elementwise.h"
#include "nn/attention/module_call.h"
#include "nn/call_memory.h"

namespace multihead::nn {
namespace {

ConstTensor matrix_of_head(const ConstTensor& weights, int64_t head) {
  return {moved(weights.data, head * weights.strides[0]),
          {weights.shape[1], weights.shape[2]},
          {weights.strides[1], weights.strides[2]}};
}

// True if one product can compute the keys and values of all heads: the rows of both matrices are
// interleaved by head, as in kv_b_proj.
bool lies_as_kv_b_proj(const LatentWeights& weights) {
  const ConstTensor &k = weights.w_uk, &v = weights.w_uv;
  const int64_t row = k.strides[1];
  return k.data != nullptr && v.data == k.data + k.shape[1] * row && v.strides == k.strides &&
         k.strides[0] == (k.shape[1] + v.shape[1]) * row;
}

int64_t qk_nope_head_dim(const MultiHeadAttentionConfig& c) { return c.head_dim - c.rope_head_dim; }

LatentWeights latent_weights(const MultiHeadAttentionConfig& c, const ConstTensor& kv_b_proj) {
  return split_kv_b_proj(kv_b_proj, c.num_heads, qk_nope_head_dim(c));
}

}  // namespace

LatentWeights split_kv_b_proj(const ConstTensor& kv_b_proj, int64_t heads,
                              int64_t qk_nope_head_dim) {
  const int64_t rank = kv_b_proj.shape[1], row = kv_b_proj.strides[0];
  const int64_t head_rows = kv_b_proj.shape[0] / heads;
  const Dims strides{head_rows * row, row, 1};
  return {.w_uk = {kv_b_proj.data, {heads, qk_nope_head_dim, rank}, strides},
          .w_uv = {kv_b_proj.data + qk_nope_head_dim * row,
                   {heads, head_rows - qk_nope_head_dim, rank},
                   strides}};
}

Dims expansion_shape(const LatentWeights& weights, int64_t batch, int64_t tokens) {
  if (!lies_as_kv_b_proj(weights)) return {0};
  return {batch, tokens, weights.w_uk.shape[0] * (weights.w_uk.shape[1] + weights.w_uv.shape[1])};
}

Status expand_keys_values(const LatentWeights& weights, const Sequence<const float>& latent,
                          const Sequence<const float>& k_rope, const Tensor& k, const Tensor& v,
                          float* scratch, Context& context) {
  const int64_t heads = weights.w_uk.shape[0], nope = weights.w_uk.shape[1];
  const int64_t value_dim = weights.w_uv.shape[1], rope = k_rope.width;
  const bool at_once = lies_as_kv_b_proj(weights);
  const int64_t width = heads * (nope + value_dim);
  const Sequence<float> expanded = laid_out_like(scratch, latent, width);
  if (at_once) {
    const ConstTensor kv_b_proj(weights.w_uk.data, {width, latent.width},
                                {weights.w_uk.strides[1], 1});
    MULTIHEAD_TRY(project(latent, kv_b_proj, {}, expanded, context));
  }
  for (int64_t h = 0; !at_once && h < heads; ++h) {
    MULTIHEAD_TRY(project(latent, matrix_of_head(weights.w_uk, h), {},
                          sequence_of_head(k, h).columns(0, nope), context));
    MULTIHEAD_TRY(
        project(latent, matrix_of_head(weights.w_uv, h), {}, sequence_of_head(v, h), context));
  }
  if (!at_once && rope == 0) return {};
  const int64_t copied = heads * (rope + (at_once ? nope + value_dim : 0));
  engine::over_rows(latent.batch * latent.tokens, copied, context, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const int64_t b = row / latent.tokens, n = row % latent.tokens;
      const float* from = at_once ? expanded.token(b, n) : nullptr;
      const float* const shared = rope > 0 ? k_rope.token(b, n) : nullptr;
      float* key = k.data + b * k.strides[0] + n * k.strides[2];
      float* value = v.data + b * v.strides[0] + n * v.strides[2];
      for (int64_t h = 0; h < heads; ++h, key += k.strides[1], value += v.strides[1]) {
        std::copy_n(shared, rope, key + nope);
        if (!at_once) continue;
        std::copy_n(from, nope, key);
        std::copy_n(from + nope, value_dim, value);
        from += nope + value_dim;
      }
    }
  });
  return {};
}

void transpose_key_weights(const ConstTensor& w_uk, int64_t first, int64_t end, float* transposed) {
  const int64_t nope = w_uk.shape[1], rank = w_uk.shape[2];
  for (int64_t h = first; h < end; ++h) {
    const ConstTensor from = matrix_of_head(w_uk, h);
    float* to = transposed + h * nope * rank;
    for (int64_t r = 0; r < rank; ++r) {
      for (int64_t row = 0; row < nope; ++row) *to++ = from.data[row * from.strides[0] + r];
    }
  }
}

Status absorb_queries(const ConstTensor& w_uk_transposed, const ConstTensor& q_nope,
                      const ConstTensor& q_rope, const Tensor& absorbed, Context& context) {
  const int64_t rank = w_uk_transposed.shape[1], rope = q_rope.shape[3];
  for (int64_t h = 0; h < w_uk_transposed.shape[0]; ++h) {
    MULTIHEAD_TRY(project(sequence_of_head(q_nope, h), matrix_of_head(w_uk_transposed, h), {},
                          sequence_of_head(absorbed, h).columns(0, rank), context));
  }
  engine::copy_rows(q_rope, columns_of(absorbed, rank, rope), context);
  return {};
}

Status expand_outputs(const ConstTensor& w_uv, const ConstTensor& attended, const Tensor& out,
                      Context& context) {
  for (int64_t h = 0; h < w_uv.shape[0]; ++h) {
    MULTIHEAD_TRY(project(sequence_of_head(attended, h), matrix_of_head(w_uv, h), {},
                          sequence_of_head(out, h), context));
  }
  return {};
}

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
  if (options.qk_norm.given()) return option_error(Name::kQkNorm, Message::kNormWithLatent);
  if (options.rope.given() && c.rope_head_dim == 0) {
    return option_error(Name::kRope, Message::kRopeWithLatent);
  }
  return {};
}

Status make_absorbed_keys(const MultiHeadAttentionConfig& c, const ConstTensor& kv_b_proj,
                          engine::Buffer& absorbed_keys) {
  const uint64_t bytes = static_cast<uint64_t>(c.num_heads) *
                         static_cast<uint64_t>(qk_nope_head_dim(c)) *
                         static_cast<uint64_t>(c.kv_latent_dim) * sizeof(float);
  if (!absorbed_keys.reserve(bytes)) return Status::out_of_memory(bytes);
  transpose_key_weights(latent_weights(c, kv_b_proj).w_uk, 0, c.num_heads,
                        static_cast<float*>(absorbed_keys.data()));
  return {};
}

void ModuleCall::lay_out_latent(rules::Arena& take) {
  q_latent = sequence_like(query, config.q_latent_dim, take);
  compressed_kv = sequence_like(key, compressed_kv_width(), take);
  if (absorbed_keys == nullptr) {
    const LatentWeights split = latent_weights(config, weights.kv_b_proj);
    take(expansion, saturated_elements(expansion_shape(split, key.batch, key.tokens)));
    if (!keeps) return;
    plain_q_latent = sequence_like(query, config.q_latent_dim, take);
    plain_kv_latent = sequence_like(key, config.kv_latent_dim, take);
    return;
  }
  absorbed_q = sequence_like(query, config.num_heads * compressed_kv_width(), take);
  latent_out = sequence_like(query, config.num_heads * config.kv_latent_dim, take);
}

Status ModuleCall::project_latent() const {
  // RMS norm of the first columns of each row, in place.
  const auto normalize = [&](const Sequence<float>& rows, int64_t columns, const ConstTensor& gain,
                             const Sequence<float>& plain) {
    if (keeps) engine::copy_rows(rows.columns(0, columns).heads(1), plain.heads(1), context);
    const Tensor tokens(rows.data, {rows.batch * rows.tokens, columns}, {rows.width, 1});
    return rms_norm(tokens, gain, config.latent_norm_eps, tokens, context);
  };
  if (config.q_latent_dim == 0) {
    MULTIHEAD_TRY(project(query, weights.q_proj, {}, q, context, precision));
  } else {
    MULTIHEAD_TRY(project(query, weights.q_a_proj, weights.q_a_bias, q_latent, context, precision));
    MULTIHEAD_TRY(normalize(q_latent, config.q_latent_dim, weights.q_a_norm, plain_q_latent));
    MULTIHEAD_TRY(project(q_latent, weights.q_b_proj, {}, q, context, precision));
  }
  MULTIHEAD_TRY(
      project(key, weights.kv_a_proj, weights.kv_a_bias, compressed_kv, context, precision));
  MULTIHEAD_TRY(normalize(compressed_kv, config.kv_latent_dim, weights.kv_a_norm, plain_kv_latent));
  if (absorbed_keys != nullptr) return {};
  return expand_keys_values(
      latent_weights(config, weights.kv_b_proj), compressed_kv.columns(0, config.kv_latent_dim),
      compressed_kv.columns(config.kv_latent_dim, config.rope_head_dim),
      k.heads(config.num_kv_heads), v.heads(config.num_kv_heads), expansion, context);
}

Status ModuleCall::absorb_queries() const {
  const int64_t nope = qk_nope_head_dim(config);
  const Tensor heads = q.heads(config.num_heads);
  return nn::absorb_queries({absorbed_keys, {config.num_heads, config.kv_latent_dim, nope}},
                            columns_of(heads, 0, nope),
                            columns_of(heads, nope, config.rope_head_dim), q_heads(), context);
}

Status ModuleCall::expand_values() const {
  tracer.add_heads("latent_out", attended_heads());
  return expand_outputs(latent_weights(config, weights.kv_b_proj).w_uv, attended_heads(),
                        attended.heads(config.num_heads), context);
}

}  // namespace multihead::nn
