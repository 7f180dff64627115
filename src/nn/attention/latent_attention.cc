#include "multihead/latent_attention.h"

#include <cmath>
#include <cstdint>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "nn/attention/latent.h"
#include "nn/attention/sequence.h"
#include "nn/call_memory.h"
#include "rules/arena.h"

namespace multihead {
namespace {

struct Sizes {
  int64_t batch, heads, queries, keys, nope, rope, rank, value;
};

Status validate(const LatentAttentionInputs& in, const AttentionOptions& options,
                const AttentionOutputs& outputs, Sizes& s) {
  using engine::validate_exact;
  using engine::validate_rank;
  MULTIHEAD_TRY(validate_rank(Name::kQNope, Axes::kQNope, in.q_nope, 4));
  MULTIHEAD_TRY(validate_rank(Name::kQRope, Axes::kQRope, in.q_rope, 4));
  MULTIHEAD_TRY(validate_rank(Name::kLatent, Axes::kLatent, in.latent, 3));
  MULTIHEAD_TRY(validate_rank(Name::kWUv, Axes::kWUv, in.w_uv, 3));
  s = {.batch = in.q_nope.shape[0],
       .heads = in.q_nope.shape[1],
       .queries = in.q_nope.shape[2],
       .keys = in.latent.shape[1],
       .nope = in.q_nope.shape[3],
       .rope = in.q_rope.shape[3],
       .rank = in.latent.shape[2],
       .value = in.w_uv.shape[1]};
  MULTIHEAD_TRY(validate_exact(Name::kQNope, Axes::kQNope, in.q_nope, in.q_nope.shape));
  MULTIHEAD_TRY(
      validate_exact(Name::kQRope, Axes::kQRope, in.q_rope, {s.batch, s.heads, s.queries, s.rope}));
  MULTIHEAD_TRY(validate_exact(Name::kLatent, Axes::kLatent, in.latent, {s.batch, s.keys, s.rank}));
  MULTIHEAD_TRY(validate_exact(Name::kKRope, Axes::kKRope, in.k_rope, {s.batch, s.keys, s.rope}));
  MULTIHEAD_TRY(validate_exact(Name::kWUk, Axes::kWUk, in.w_uk, {s.heads, s.nope, s.rank}));
  MULTIHEAD_TRY(validate_exact(Name::kWUv, Axes::kWUv, in.w_uv, {s.heads, s.value, s.rank}));
  if (options.rope.given()) return option_error(Name::kRope, Message::kRotatedAlready);
  if (options.qk_norm.given()) return option_error(Name::kQkNorm, Message::kNone);
  if (!outputs.captures.empty()) return option_error(Name::kCaptures, Message::kNone);
  if (outputs.dropout_mask.given()) return option_error(Name::kDropoutMask, Message::kNone);
  const engine::AttentionShape shape{.batch = s.batch,
                                     .heads = s.heads,
                                     .kv_heads = s.heads,
                                     .queries = s.queries,
                                     .keys = s.keys,
                                     .head_dim = s.nope + s.rope,
                                     .value_dim = s.value};
  MULTIHEAD_TRY(engine::validate_options(options, shape));
  MULTIHEAD_TRY(engine::validate_outputs(outputs, shape));
  if (outputs.out.dtype != DType::kF32) {
    return shape_error(Name::kOut, Message::kF32, static_cast<int>(outputs.out.dtype));
  }
  return {};
}

Status expanded(const LatentAttentionInputs& in, const Sizes& s, const AttentionOptions& options,
                const AttentionOutputs& outputs, Context& context) {
  const nn::LatentWeights weights{.w_uk = in.w_uk, .w_uv = in.w_uv};
  const Dims q_shape{s.batch, s.heads, s.queries, s.nope + s.rope};
  const Dims k_shape{s.batch, s.heads, s.keys, s.nope + s.rope};
  const Dims v_shape{s.batch, s.heads, s.keys, s.value};
  const Dims expansion_shape = nn::expansion_shape(weights, s.batch, s.keys);
  float *q_data = nullptr, *k_data = nullptr, *v_data = nullptr, *expansion = nullptr;
  MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).workspace(), [&](rules::Arena& take) {
    take(q_data, nn::saturated_elements(q_shape));
    take(k_data, nn::saturated_elements(k_shape));
    take(v_data, nn::saturated_elements(v_shape));
    take(expansion, nn::saturated_elements(expansion_shape));
  }));
  const Tensor q(q_data, q_shape), k(k_data, k_shape), v(v_data, v_shape);
  engine::copy_rows(in.q_nope, nn::columns_of(q, 0, s.nope), context);
  engine::copy_rows(in.q_rope, nn::columns_of(q, s.nope, s.rope), context);
  MULTIHEAD_TRY(nn::expand_keys_values(weights, nn::sequence_of(in.latent, true),
                                       nn::sequence_of(in.k_rope, true), k, v, expansion, context));
  return attention(q, k, v, options, outputs, context);
}

Status absorbed(const LatentAttentionInputs& in, const Sizes& s, const AttentionOptions& options,
                const AttentionOutputs& outputs, Context& context) {
  const Dims w_uk_shape{s.heads, s.rank, s.nope};
  const Dims q_shape{s.batch, s.heads, s.queries, s.rank + s.rope};
  const Dims k_shape{s.batch, 1, s.keys, s.rank + s.rope};
  const Dims out_shape{s.batch, s.heads, s.queries, s.rank};
  float *w_uk_data = nullptr, *q_data = nullptr, *k_data = nullptr, *attended_data = nullptr;
  MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).workspace(), [&](rules::Arena& take) {
    take(w_uk_data, nn::saturated_elements(w_uk_shape));
    take(q_data, nn::saturated_elements(q_shape));
    take(k_data, nn::saturated_elements(k_shape));
    take(attended_data, nn::saturated_elements(out_shape));
  }));
  const Tensor w_uk(w_uk_data, w_uk_shape), q(q_data, q_shape), k(k_data, k_shape);
  const Tensor attended(attended_data, out_shape);
  engine::over_rows(s.heads, s.rank * s.nope, context, [&](int64_t first, int64_t end) {
    nn::transpose_key_weights(in.w_uk, first, end, w_uk.data);
  });
  MULTIHEAD_TRY(nn::absorb_queries(w_uk, in.q_nope, in.q_rope, q, context));
  engine::copy_rows(nn::sequence_of(in.latent, true).heads(1), nn::columns_of(k, 0, s.rank),
                    context);
  engine::copy_rows(nn::sequence_of(in.k_rope, true).heads(1), nn::columns_of(k, s.rank, s.rope),
                    context);
  // The values are the latents: the first columns of the keys.
  const Tensor v(k.data, {s.batch, 1, s.keys, s.rank}, k.strides);
  AttentionOutputs latent_outputs = outputs;
  latent_outputs.out = attended;
  MULTIHEAD_TRY(attention(q, k, v, options, latent_outputs, context));
  const Tensor out(static_cast<float*>(outputs.out.data), outputs.out.shape, outputs.out.strides);
  return nn::expand_outputs(in.w_uv, attended, out, context);
}

}  // namespace

Status latent_attention(const LatentAttentionInputs& inputs, LatentForm form,
                        const AttentionOptions& options, const AttentionOutputs& outputs,
                        Context& context) {
  return engine::memory_guard([&]() -> Status {
    MULTIHEAD_TRY(engine::validate_enumerator(engine::Name::kForm, form, LatentForm::kAbsorbed));
    Sizes s{};
    MULTIHEAD_TRY(validate(inputs, options, outputs, s));
    AttentionOptions scaled = options;
    if (!scaled.scale) {
      scaled.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.nope + s.rope)));
    }
    return form == LatentForm::kExpanded ? expanded(inputs, s, scaled, outputs, context)
                                         : absorbed(inputs, s, scaled, outputs, context);
  });
}

}  // namespace multihead
