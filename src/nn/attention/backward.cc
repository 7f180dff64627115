// MultiHeadAttention::backward(): backpropagates from the module's output to its inputs.
#include <cstdint>

#include "engine/attention/transform.h"
#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "multihead/attention_backward.h"
#include "multihead/multi_head_attention.h"
#include "nn/attention/attention_parameters.h"
#include "nn/attention/checked_call.h"
#include "nn/attention/masks.h"
#include "nn/attention/module_gradients.h"
#include "nn/call_memory.h"
#include "rules/visibility.h"

namespace multihead {
namespace {

using engine::validate_exact;

Status validate_gradients(const MultiHeadAttentionConfig& config,
                          const MultiHeadAttentionWeights& weights,
                          const MultiHeadAttentionInputs& inputs,
                          const MultiHeadAttentionGradients& gradients,
                          const nn::CheckedCall& call) {
  const struct {
    Name name;
    Axes axes;
    const Tensor& gradient;
    bool given;
    const ConstTensor& input;
  } input_gradients[] = {
      {Name::kDQuery, Axes::kAsQuery, gradients.d_query, true, call.query_tensor},
      {Name::kDKey, Axes::kAsKey, gradients.d_key, inputs.key.given(), call.key_tensor},
      {Name::kDValue, Axes::kAsValue, gradients.d_value, inputs.value.given(), call.value_tensor}};
  for (const auto& [name, axes, gradient, given, input] : input_gradients) {
    if (!gradient.given()) continue;
    if (!given) return option_error(name, Message::kGradientOfDefault);
    MULTIHEAD_TRY(validate_exact(name, axes, gradient, input.shape));
  }
  return nn::validate_weight_gradients(config, weights, gradients.weights);
}

}  // namespace

Status MultiHeadAttention::backward(const MultiHeadAttentionInputs& inputs,
                                    const MultiHeadAttentionOptions& options,
                                    const ConstTensor& d_out,
                                    const MultiHeadAttentionActivations* activations,
                                    const MultiHeadAttentionGradients& gradients,
                                    Context& context) const {
  return engine::memory_guard([&]() -> Status {
    nn::CheckedCall call;
    MULTIHEAD_TRY(nn::check_call(config_, weights_, inputs, options, call));
    nn::Tracer tracer(nullptr, context);
    nn::ModuleCall run = call.module_call(config_, weights_, tracer, context);
    run.keeps = true;
    run.precision = call.options.attention.precision;
    const nn::CallMasks masks(call.options, call.shape, call.appended);
    const nn::TokenLayout& layout = call.layout;
    MULTIHEAD_TRY(masks.validate());
    MULTIHEAD_TRY(
        validate_exact(Name::kDOut, layout.axes(Axes::kBatchOut, Axes::kOutBatch, Axes::kOutTokens),
                       d_out, layout.shape(call.query.batch, call.query.tokens, run.out_width())));
    MULTIHEAD_TRY(validate_gradients(config_, weights_, inputs, gradients, call));
    const nn::KeptAttention* kept = nullptr;
    if (activations != nullptr) {
      kept = nn::ActivationsAccess::find(*activations);
      if (kept == nullptr || !kept->belong_to(memory_->version, run.kept_call(call.shape))) {
        return option_error(Name::kActivations, Message::kActivationsOfCall);
      }
    }
    nn::ModuleGradients back(run, call.options.attention, gradients);
    float* bias = nullptr;
    uint8_t* mask = nullptr;
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).module(), [&](rules::Arena& take) {
      if (kept == nullptr) run.lay_out(take);
      back.lay_out(take);
      take(bias, masks.bias_elements());
      take(mask, masks.mask_elements());
    }));
    if (kept != nullptr) {
      rules::Arena filled(kept->data());
      run.lay_out(filled);
    }
    AttentionOptions effective = call.options.attention;
    masks.join(bias, mask, effective, context);
    effective.qk_norm = {};
    effective.rope = {};
    if (kept == nullptr) {
      MULTIHEAD_TRY(run.project_inputs());
      AttentionOptions positional = call.options.attention;
      MULTIHEAD_TRY(run.transform(positional));
      run.append();
      MULTIHEAD_TRY(attention(run.q_heads(), run.k_heads(), run.v_heads(), effective,
                              {.out = run.attended_heads(), .lse = run.lse_tensor()}, context));
      run.scale_heads();
    }
    return back.run(nn::sequence_of(d_out, config_.batch_first), effective, inputs.key.given(),
                    inputs.value.given());
  });
}

}  // namespace multihead
