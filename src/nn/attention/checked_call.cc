#include "nn/attention/checked_call.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/attention/validate.h"
#include "nn/attention/attention_parameters.h"
#include "nn/attention/latent.h"
#include "nn/dropout_sites.h"

namespace multihead::nn {
namespace {

using engine::validate_exact;

std::span<const float> span_of(const ConstTensor& tensor) {
  if (!tensor.given()) return {};
  return {tensor.data, static_cast<size_t>(tensor.shape.elements())};
}

Status check_query(const MultiHeadAttentionConfig& config, const ConstTensor& query,
                   TokenLayout& layout) {
  const int rank = query.shape.rank();
  if (rank != 2 && rank != 3) {
    return shape_error(Name::kQuery, Message::kRank3Or2, Axes::kBatchTokens, {}, query.shape, rank);
  }
  layout = {rank == 3, config.batch_first};
  Dims shape = query.shape;
  shape[rank - 1] = config.embed_dim;
  return validate_exact(Name::kQuery,
                        layout.axes(Axes::kBatchTokens, Axes::kTokensBatch, Axes::kTokens), query,
                        shape);
}

Status check_inputs(const MultiHeadAttentionConfig& config, CheckedCall& call) {
  const ConstTensor &query = call.query_tensor, &key = call.key_tensor, &value = call.value_tensor;
  const TokenLayout& layout = call.layout;
  MULTIHEAD_TRY(check_query(config, query, call.layout));
  call.query = sequence_of(query, config.batch_first);
  const int axis = layout.batched && config.batch_first ? 1 : 0;
  if (key.shape.rank() != query.shape.rank()) {
    return shape_error(Name::kKey, Message::kRankOfQuery, key.shape, query.shape.rank());
  }
  const int64_t keys = key.shape[axis];
  if (config.kv_latent_dim > 0 && !same_view(key, value)) {
    return option_error(Name::kValue, Message::kKeyOfLatent);
  }
  MULTIHEAD_TRY(validate_exact(Name::kKey,
                               layout.axes(Axes::kBatchKeys, Axes::kKeysBatch, Axes::kKeys), key,
                               layout.shape(call.query.batch, keys, config.kdim)));
  MULTIHEAD_TRY(validate_exact(Name::kValue,
                               layout.axes(Axes::kBatchValues, Axes::kValuesBatch, Axes::kValues),
                               value, layout.shape(call.query.batch, keys, config.vdim)));
  call.key = sequence_of(key, config.batch_first);
  call.value = sequence_of(value, config.batch_first);
  call.self = same_view(query, key) && same_view(key, value);
  return {};
}

}  // namespace

AttentionOptions resolved_options(const MultiHeadAttentionConfig& config,
                                  const MultiHeadAttentionWeights& weights,
                                  const MultiHeadAttentionOptions& options) {
  AttentionOptions resolved = options.attention;
  // Compare with -1 instead of calling given(): an invalid window must stay in the options, so that
  // attention() refuses it.
  if (resolved.window.left == -1 && resolved.window.right == -1) {
    resolved.window.left = config.window.left;
    resolved.window.right = config.window.right;
  }
  if (resolved.softcap == 0.0F) resolved.softcap = config.softcap;
  if (resolved.sinks.empty()) resolved.sinks = span_of(weights.sinks);
  if (config.qk_norm && !resolved.qk_norm.given()) {
    resolved.qk_norm = {.q_gain = span_of(weights.q_norm),
                        .k_gain = span_of(weights.k_norm),
                        .eps = config.qk_norm_eps,
                        .enabled = true};
  }
  if (!resolved.rope.given()) {
    resolved.rope.style = config.rope.style;
    resolved.rope.base = config.rope.base;
    resolved.rope.rotary_dim = config.rope.rotary_dim;
  }
  if (options.training && resolved.dropout.probability == 0.0F) {
    resolved.dropout = {config.dropout, options.dropout_seed};
  }
  const HeadInterventions& interventions = options.heads;
  if (!resolved.scale) {
    resolved.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  }
  // Skip division by 1 to keep the scale bit-identical.
  if (interventions.temperature != 1.0F) *resolved.scale /= interventions.temperature;
  return resolved;
}

Status validate_head_interventions(const HeadInterventions& interventions,
                                   const MultiHeadAttentionConfig& config) {
  if (!interventions.head_scales.empty() &&
      static_cast<int64_t>(interventions.head_scales.size()) != config.num_heads) {
    return shape_error(Name::kHeadScales, Message::kValuePerHead, config.num_heads,
                       static_cast<int64_t>(interventions.head_scales.size()));
  }
  for (const float factor : interventions.head_scales) {
    if (!std::isfinite(factor)) {
      return engine::real_error(Name::kHeadScales, Message::kFiniteNumbers, factor);
    }
  }
  if (!(interventions.temperature > 0.0F) || std::isinf(interventions.temperature)) {
    return engine::real_error(Name::kTemperature, Message::kFinitePositive,
                              interventions.temperature);
  }
  return {};
}

ModuleCall CheckedCall::module_call(const MultiHeadAttentionConfig& config,
                                    const MultiHeadAttentionWeights& weights, Tracer& tracer,
                                    Context& context) const {
  const bool drops = options.training && config.out_dropout > 0.0F;
  return {.config = config,
          .weights = weights,
          .interventions = options.heads,
          .tracer = tracer,
          .context = context,
          .query = query,
          .key = key,
          .value = value,
          .self = self,
          .appended = appended,
          .out_dropout = {drops ? config.out_dropout : 0.0F, options.dropout_seed, kModuleOutput},
          .normalizes = options.attention.qk_norm.given()};
}

Status check_call(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights,
                  const MultiHeadAttentionInputs& inputs, const MultiHeadAttentionOptions& options,
                  CheckedCall& call) {
  if (!has_weights(weights)) return option_error(Name::kModule, Message::kLoadedOrUsed);
  call.query_tensor = inputs.query;
  call.key_tensor = inputs.key.given() ? inputs.key : inputs.query;
  call.value_tensor = inputs.value.given() ? inputs.value : call.key_tensor;
  MULTIHEAD_TRY(check_inputs(config, call));
  call.appended = (config.add_bias_kv ? 1 : 0) + (config.add_zero_attn ? 1 : 0);
  call.shape = {.batch = call.query.batch,
                .heads = config.num_heads,
                .kv_heads = config.num_kv_heads,
                .queries = call.query.tokens,
                .keys = call.key.tokens,
                .head_dim = transformed_width(config),
                .value_dim = config.value_dim};
  call.options = options;
  call.options.attention = resolved_options(config, weights, options);
  const AttentionOptions& attention = call.options.attention;
  if (call.appended > 0 && !attention.alibi_slopes.empty()) {
    return option_error(Name::kAlibiSlopes, Message::kAlibiBesideAppended);
  }
  MULTIHEAD_TRY(validate_head_interventions(options.heads, config));
  MULTIHEAD_TRY(validate_latent_options(config, attention));
  MULTIHEAD_TRY(engine::validate_options(attention, call.shape));
  return {};
}

}  // namespace multihead::nn
