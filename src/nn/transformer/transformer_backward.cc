// Transformer::backward(): backpropagates from the logits to the embeddings.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/attention/validate.h"
#include "engine/error/guard.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/scratch.h"
#include "multihead/transformer.h"
#include "nn/call_memory.h"
#include "nn/dropout_sites.h"
#include "nn/parameters.h"
#include "nn/transformer/activations.h"
#include "nn/transformer/transformer_block.h"

namespace multihead {

using engine::Axes;
using engine::Message;
using engine::Name;
using engine::option_error;
using engine::shape_error;

Status Transformer::backward(std::span<const int32_t> tokens, int64_t batch,
                             const MultiHeadAttentionOptions& options, const ConstTensor& d_logits,
                             TransformerActivations& activations, std::span<float> gradients,
                             Context& context) const {
  return engine::memory_guard(
      [&] { return back(tokens, batch, options, d_logits, activations, gradients, context); });
}

Status Transformer::back(std::span<const int32_t> tokens, int64_t batch,
                         const MultiHeadAttentionOptions& options, const ConstTensor& d_logits,
                         TransformerActivations& activations, std::span<float> gradients,
                         Context& context) const {
  MULTIHEAD_TRY(validate_call(tokens, batch, 0, options));
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t length = count / batch, width = config_.block.attention.embed_dim;
  const int64_t logits_width = config_.num_readouts * config_.vocab_size;
  const Dims logits{batch, length, logits_width};
  MULTIHEAD_TRY(engine::validate_exact(Name::kDLogits, Axes::kLogits, d_logits, logits));
  if (!(d_logits.strides == contiguous_strides(logits))) {
    return shape_error(Name::kDLogits, Message::kContiguous, d_logits.strides);
  }
  const auto given = static_cast<int64_t>(gradients.size());
  if (given != num_parameters()) {
    return shape_error(Name::kGradients, Message::kFloatPerParameter, num_parameters(), given);
  }
  const TransformerActivations::Internals* const kept = activations.internals_.get();
  if (kept == nullptr || !kept->belong_to(memory_->version, batch, length)) {
    return option_error(Name::kActivations, Message::kActivationsOfCall);
  }

  float* d = nullptr;
  nn::BlockBackwardArrays arrays;
  MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).transformer(), [&](rules::Arena& take) {
    take(d, nn::saturated_elements({count, width}));
    arrays.lay_out(config_.block, count, take);
  }));
  const nn::GradientBlock block{memory_->parameters.values(), gradients.data()};
  const auto blocks = layers();
  const Dims flat{count, width};
  const bool norms = config_.final_norm && config_.block.norm != Norm::kNone;
  const float* const last = kept->input(blocks.size());
  MULTIHEAD_TRY(engine::linear_backward({.x = {norms ? kept->normed() : last, flat},
                                         .weight = weights_.output,
                                         .d_y = {d_logits.data, {count, logits_width}},
                                         .d_x = {d, flat},
                                         .d_weight = block.of(weights_.output),
                                         .precision = options.attention.precision},
                                        context));
  if (norms) {
    MULTIHEAD_TRY(nn::normalize_back(config_.block, last, weights_.norm_weight, weights_.norm_bias,
                                     d, {d, flat}, false, block, context));
  }
  const Tensor gradient(d, {batch, length, width});
  for (size_t layer = blocks.size(); layer-- > 0;) {
    const ConstTensor x(kept->input(layer), gradient.shape);
    const MultiHeadAttentionOptions of_layer = options_of(options, layer, config_.causal);
    const nn::BlockArrays& of_forward = kept->of_layer(layer);
    if (kept->recomputes()) {
      // The kept input of the next layer is this layer's output, so the recomputation overwrites it
      // with the same values.
      const Tensor out(kept->input(layer + 1), gradient.shape);
      MULTIHEAD_TRY(TransformerBlock::Internals::run(blocks[layer], x, of_layer, {.out = out},
                                                     nullptr, nullptr, of_forward, context));
    }
    MULTIHEAD_TRY(TransformerBlock::Internals::back(blocks[layer], x, of_layer, of_forward, arrays,
                                                    gradient, gradients.data(), context));
  }
  if (const engine::RowDropout dropout = nn::embedding_dropout(config_, options);
      dropout.probability > 0.0F) {
    engine::drop_rows(d, dropout, count, width, d, context);
  }
  engine::embed_backward(tokens, d, width, 0, length, block.of(weights_.embedding).data,
                         block.of(weights_.position).data, context);
  return {};
}

}  // namespace multihead
