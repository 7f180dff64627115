#include "multihead/multi_head_attention.h"

#include <cstdint>

#include "engine/elementwise.h"
#include "engine/guard.h"
#include "engine/validate.h"
#include "nn/attention/attention_parameters.h"
#include "nn/attention/latent_module.h"
#include "nn/attention/masks.h"
#include "nn/attention/module_call.h"
#include "nn/attention/options.h"
#include "nn/call_memory.h"

namespace multihead {
namespace {

using engine::Axes;
using engine::Message;
using engine::Name;
using engine::option_error;
using engine::shape_error;
using engine::validate_exact;

struct Layout {
  bool batched, batch_first;
  Axes axes(Axes batch_first_, Axes tokens_first, Axes unbatched) const {
    return !batched ? unbatched : batch_first ? batch_first_ : tokens_first;
  }
  Dims shape(int64_t batch, int64_t tokens, int64_t width) const {
    if (!batched) return {tokens, width};
    return batch_first ? Dims{batch, tokens, width} : Dims{tokens, batch, width};
  }
};

Status validate_query(const MultiHeadAttentionConfig& config, const ConstTensor& query,
                      Layout& layout) {
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

Status validate_inputs(const MultiHeadAttentionConfig& config, const MultiHeadAttentionInputs& in,
                       Layout& layout) {
  if (Status status = validate_query(config, in.query, layout); !status.ok()) return status;
  const auto query = nn::sequence_of(in.query, config.batch_first);
  const ConstTensor& key = in.key.given() ? in.key : in.query;
  const ConstTensor& value = in.value.given() ? in.value : key;
  const int axis = layout.batched && config.batch_first ? 1 : 0;
  if (key.shape.rank() != in.query.shape.rank()) {
    return shape_error(Name::kKey, Message::kRankOfQuery, key.shape, in.query.shape.rank());
  }
  const int64_t keys = key.shape[axis];
  if (config.kv_latent_dim > 0 && !nn::same_view(key, value)) {
    return option_error(Name::kValue, Message::kKeyOfLatent);
  }
  for (const Status& status :
       {validate_exact(Name::kKey, layout.axes(Axes::kBatchKeys, Axes::kKeysBatch, Axes::kKeys),
                       key, layout.shape(query.batch, keys, config.kdim)),
        validate_exact(Name::kValue,
                       layout.axes(Axes::kBatchValues, Axes::kValuesBatch, Axes::kValues), value,
                       layout.shape(query.batch, keys, config.vdim))}) {
    if (!status.ok()) return status;
  }
  return {};
}

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

Status validate_outputs(const MultiHeadAttentionOutputs& outputs, const Layout& layout,
                        int64_t batch, int64_t heads, int64_t queries, int64_t keys,
                        int64_t out_width) {
  const Dims per_head =
      layout.batched ? Dims{batch, heads, queries, keys} : Dims{heads, queries, keys};
  const Dims mean = layout.batched ? Dims{batch, queries, keys} : Dims{queries, keys};
  const Axes axes = layout.axes(Axes::kBatchOut, Axes::kOutBatch, Axes::kOutTokens);
  if (Status status =
          validate_exact(Name::kOut, axes, outputs.out, layout.shape(batch, queries, out_width));
      !status.ok()) {
    return status;
  }
  if (outputs.weights.given()) {
    if (Status status =
            validate_exact(Name::kWeights, Axes::kModuleWeights, outputs.weights, per_head);
        !status.ok()) {
      return status;
    }
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
    Status status = attention_scores(q, k, step_options, capture, context);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

Status MultiHeadAttention::forward(const MultiHeadAttentionInputs& inputs,
                                   const MultiHeadAttentionOptions& options,
                                   const MultiHeadAttentionOutputs& outputs, Trace* trace,
                                   Context& context) const {
  return engine::memory_guard(
      [&] { return forward_or_throw(inputs, options, outputs, trace, context); });
}

Status MultiHeadAttention::forward_or_throw(const MultiHeadAttentionInputs& inputs,
                                            const MultiHeadAttentionOptions& options,
                                            const MultiHeadAttentionOutputs& outputs, Trace* trace,
                                            Context& context) const {
  if (!nn::has_weights(weights_)) {
    return option_error(Name::kModule, Message::kLoadedOrUsed);
  }
  Layout layout{};
  if (Status status = validate_inputs(config_, inputs, layout); !status.ok()) return status;
  const ConstTensor& key = inputs.key.given() ? inputs.key : inputs.query;
  const ConstTensor& value = inputs.value.given() ? inputs.value : key;
  nn::Tracer tracer(trace, context);
  nn::ModuleCall run{.config = config_,
                     .weights = weights_,
                     .interventions = options.heads,
                     .tracer = tracer,
                     .context = context,
                     .query = nn::sequence_of(inputs.query, config_.batch_first),
                     .key = nn::sequence_of(key, config_.batch_first),
                     .value = nn::sequence_of(value, config_.batch_first),
                     .self = nn::same_view(inputs.query, key) && nn::same_view(key, value),
                     .appended = (config_.add_bias_kv ? 1 : 0) + (config_.add_zero_attn ? 1 : 0)};
  const int64_t batch = run.query.batch, queries = run.query.tokens, heads = config_.num_heads;
  const int64_t keys = run.key.tokens + run.appended;
  const engine::AttentionShape shape{.batch = batch,
                                     .heads = heads,
                                     .kv_heads = config_.num_kv_heads,
                                     .queries = queries,
                                     .keys = run.key.tokens,
                                     .key_width = nn::transformed_width(config_),
                                     .value_width = config_.value_dim};
  MultiHeadAttentionOptions resolved = options;
  resolved.attention = nn::resolved_options(config_, weights_, options);
  if (run.appended > 0 && !resolved.attention.alibi_slopes.empty()) {
    return option_error(Name::kAlibiSlopes, Message::kAlibiBesideAppended);
  }
  const nn::CallMasks masks(resolved, shape, run.appended);
  for (const Status& status :
       {nn::validate_head_interventions(options.heads, config_),
        nn::validate_latent_options(config_, resolved.attention),
        engine::validate_options(resolved.attention, shape), masks.validate(),
        validate_outputs(outputs, layout, batch, heads, queries, keys, run.out_width()),
        nn::validate_trace(trace)}) {
    if (!status.ok()) return status;
  }
  run.out = nn::sequence_of(outputs.out, config_.batch_first);

  const bool traces_weights = tracer.wants("weights");
  const Dims scores{batch, heads, queries, keys};
  const bool keeps_weights =
      outputs.mean_weights.given() && !outputs.weights.given() && !traces_weights;
  float* bias = nullptr;
  uint8_t* mask = nullptr;
  float* kept_weights = nullptr;
  Status reserved = nn::reserve(engine::scratch_of(context).module(), [&](rules::Arena& take) {
    run.lay_out(take);
    take(bias, masks.bias_elements());
    take(mask, masks.mask_elements());
    take(kept_weights, keeps_weights ? nn::saturated_elements(scores) : 0);
  });
  if (!reserved.ok()) return reserved;
  if (Status status = tracer.begin(run.trace_floats(keys)); !status.ok()) return status;
  AttentionOptions effective = resolved.attention;
  masks.join(bias, mask, effective, context);

  if (Status status = run.project_inputs(); !status.ok()) return status;
  run.trace_inputs();
  // RoPE needs causal and lengths for positions, which masks.join() may have moved into the mask.
  AttentionOptions positional = resolved.attention;
  if (Status status = run.transform(positional); !status.ok()) return status;
  effective.qk_norm = {};
  effective.rope = {};
  run.append();

  const Tensor q = run.q_heads(), k = run.k_heads(), v = run.v_heads();
  run.trace_heads();
  if (Status status = trace_scores(tracer, q, k, effective, context); !status.ok()) {
    return status;
  }
  Tensor weights = with_batch(outputs.weights, layout.batched);
  const bool copies_weights = traces_weights && weights.given();
  if (!weights.given() && traces_weights) {
    weights = tracer.add("weights", scores);
  } else if (keeps_weights) {
    weights = {kept_weights, scores};
  }
  if (Status status =
          attention(q, k, v, effective, {.out = run.attended_heads(), .weights = weights}, context);
      !status.ok()) {
    return status;
  }
  if (copies_weights) tracer.add_heads("weights", weights);
  if (outputs.mean_weights.given()) {
    engine::mean_over_heads(weights, with_batch(outputs.mean_weights, layout.batched), context);
  }
  return run.finish();
}

}  // namespace multihead
