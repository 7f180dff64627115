#include "multihead/multi_head_attention.h"

#include <cstdint>

#include "engine/attention/validate.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "nn/attention/attention_parameters.h"
#include "nn/attention/checked_call.h"
#include "nn/attention/masks.h"
#include "nn/attention/module_call.h"
#include "nn/call_memory.h"

namespace multihead {
namespace {

using engine::validate_exact;

// Adds a batch axis of 1 to an unbatched call's tensor.
Tensor with_batch(const Tensor& tensor, bool batched) {
  if (batched || !tensor.given()) return tensor;
  Dims shape{1}, strides{0};
  for (int axis = 0; axis < tensor.shape.rank(); ++axis) {
    shape.push_back(tensor.shape[axis]);
    strides.push_back(tensor.strides[axis]);
  }
  return {tensor.data, shape, strides};
}

Status validate_outputs(const MultiHeadAttentionOutputs& outputs, const nn::TokenLayout& layout,
                        int64_t batch, int64_t heads, int64_t queries, int64_t keys,
                        int64_t out_width) {
  const Dims per_head =
      layout.batched ? Dims{batch, heads, queries, keys} : Dims{heads, queries, keys};
  const Dims mean = layout.batched ? Dims{batch, queries, keys} : Dims{queries, keys};
  const Axes axes = layout.axes(Axes::kBatchOut, Axes::kOutBatch, Axes::kOutTokens);
  MULTIHEAD_TRY(
      validate_exact(Name::kOut, axes, outputs.out, layout.shape(batch, queries, out_width)));
  if (outputs.weights.given()) {
    MULTIHEAD_TRY(validate_exact(Name::kWeights, Axes::kModuleWeights, outputs.weights, per_head));
  }
  if (!outputs.mean_weights.given()) return {};
  return validate_exact(Name::kMeanWeights, Axes::kMeanWeights, outputs.mean_weights, mean);
}

Status trace_scores(nn::Tracer& tracer, const ConstTensor& q, const ConstTensor& k,
                    const AttentionOptions& options, Context& context) {
  AttentionOptions unscaled = options;
  unscaled.scale = 1.0F;
  const struct {
    const char* name;
    const AttentionOptions& options;
    ScoreStage stage;
  } steps[] = {{"scores", unscaled, ScoreStage::kRaw},
               {"scaled_scores", options, ScoreStage::kRaw},
               {"masked_scores", options, ScoreStage::kMasked}};
  const Dims shape{q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
  for (const auto& [name, step_options, stage] : steps) {
    if (!tracer.wants(name)) continue;
    const ScoreCapture capture{.stage = stage, .out = tracer.add(name, shape)};
    MULTIHEAD_TRY(attention_scores(q, k, step_options, capture, context));
  }
  return {};
}

}  // namespace

Status MultiHeadAttention::forward(const MultiHeadAttentionInputs& inputs,
                                   const MultiHeadAttentionOptions& options,
                                   const MultiHeadAttentionOutputs& outputs, Trace* trace,
                                   Context& context) const {
  return engine::memory_guard([&]() -> Status {
    nn::CheckedCall call;
    MULTIHEAD_TRY(nn::check_call(config_, weights_, inputs, options, call));
    nn::Tracer tracer(trace, context);
    nn::ModuleCall run = call.module_call(config_, weights_, tracer, context);
    run.keeps = outputs.activations != nullptr;
    run.precision = call.options.attention.precision;
    const nn::CallMasks masks(call.options, call.shape, call.appended);
    const int64_t keys = call.keys();
    MULTIHEAD_TRY(masks.validate());
    MULTIHEAD_TRY(validate_outputs(outputs, call.layout, call.query.batch, config_.num_heads,
                                   call.query.tokens, keys, run.out_width()));
    MULTIHEAD_TRY(nn::validate_trace(trace));
    run.out = nn::sequence_of(outputs.out, config_.batch_first);

    const bool traces_weights = tracer.wants("weights");
    const Dims scores{call.query.batch, config_.num_heads, call.query.tokens, keys};
    const bool keeps_weights =
        outputs.mean_weights.given() && !outputs.weights.given() && !traces_weights;
    float* bias = nullptr;
    uint8_t* mask = nullptr;
    float* kept_weights = nullptr;
    nn::KeptAttention* kept = nullptr;
    if (run.keeps) {
      MULTIHEAD_TRY(nn::ActivationsAccess::make(*outputs.activations, kept));
      MULTIHEAD_TRY(kept->begin(memory_->version, run.kept_call(call.shape),
                                [&](rules::Arena& take) { run.lay_out(take); }));
    }
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).module(), [&](rules::Arena& take) {
      if (!run.keeps) run.lay_out(take);
      take(bias, masks.bias_elements());
      take(mask, masks.mask_elements());
      take(kept_weights, keeps_weights ? nn::saturated_elements(scores) : 0);
    }));
    MULTIHEAD_TRY(tracer.begin(run.trace_floats(keys)));
    AttentionOptions effective = call.options.attention;
    masks.join(bias, mask, effective, context);

    MULTIHEAD_TRY(run.project_inputs());
    run.trace_inputs();
    // RoPE derives positions from `causal` and `lengths`, which masks.join() may have replaced by a
    // mask.
    AttentionOptions positional = call.options.attention;
    MULTIHEAD_TRY(run.transform(positional));
    effective.qk_norm = {};
    effective.rope = {};
    run.append();

    const Tensor q = run.q_heads(), k = run.k_heads(), v = run.v_heads();
    run.trace_heads();
    MULTIHEAD_TRY(trace_scores(tracer, q, k, effective, context));
    Tensor weights = with_batch(outputs.weights, call.layout.batched);
    const bool copies_weights = traces_weights && weights.given();
    if (!weights.given() && traces_weights) {
      weights = tracer.add("weights", scores);
    } else if (keeps_weights) {
      weights = {kept_weights, scores};
    }
    const AttentionOutputs attended{
        .out = run.attended_heads(), .lse = run.lse_tensor(), .weights = weights};
    MULTIHEAD_TRY(attention(q, k, v, effective, attended, context));
    if (copies_weights) tracer.add_heads("weights", weights);
    if (outputs.mean_weights.given()) {
      engine::mean_over_heads(weights, with_batch(outputs.mean_weights, call.layout.batched),
                              context);
    }
    MULTIHEAD_TRY(run.finish());
    if (kept != nullptr) kept->end();
    return {};
  });
}

}  // namespace multihead
