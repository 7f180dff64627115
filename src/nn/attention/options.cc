#include "nn/attention/options.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/error/error.h"

namespace multihead::nn {
namespace {

using engine::Message;
using engine::Name;

std::span<const float> span_of(const ConstTensor& tensor) {
  if (!tensor.given()) return {};
  return {tensor.data, static_cast<size_t>(tensor.shape.elements())};
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
  if (config.qk_norm && !resolved.qk_norm.enabled) {
    resolved.qk_norm = {.q_gain = span_of(weights.q_norm),
                        .k_gain = span_of(weights.k_norm),
                        .eps = config.qk_norm_eps,
                        .enabled = true};
  }
  if (resolved.rope.style == Rope::Style::kNone) {
    resolved.rope.style = config.rope.style;
    resolved.rope.base = config.rope.base;
    resolved.rope.rotary_dim = config.rope.rotary_dim;
  }
  if (options.training && resolved.dropout.probability == 0.0F) {
    resolved.dropout = {config.dropout, options.dropout_seed};
  }
  const HeadInterventions& interventions = options.heads;
  if (!resolved.scale) {
    const int64_t width = interventions.scale_by_embed_dim ? config.embed_dim : config.head_dim;
    resolved.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
  }
  // Skip division by 1 to keep the scale bit-identical.
  if (interventions.temperature != 1.0F) *resolved.scale /= interventions.temperature;
  return resolved;
}

Status validate_head_interventions(const HeadInterventions& interventions,
                                   const MultiHeadAttentionConfig& config) {
  if (!interventions.head_scales.empty() &&
      static_cast<int64_t>(interventions.head_scales.size()) != config.num_heads) {
    return engine::shape_error(Name::kHeadScales, Message::kValuePerHead, config.num_heads,
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

}  // namespace multihead::nn
