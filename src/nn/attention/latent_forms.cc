#include "nn/attention/latent_forms.h"

#include <algorithm>
#include <cstdint>

#include "engine/error/error.h"
#include "engine/layers/elementwise.h"

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

}  // namespace multihead::nn
