// MultiHeadAttention::step(): attention of one or several new tokens over a cache.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/cache/cache_access.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/runtime/team.h"
#include "nn/attention/attention_parameters.h"
#include "nn/attention/checked_call.h"
#include "nn/attention/latent.h"
#include "nn/attention/module_call.h"
#include "nn/call_memory.h"

namespace multihead {
namespace {

using engine::validate_exact;

// Refuses options that step() sets itself.
Status refuse_others(const MultiHeadAttentionOptions& options) {
  const AttentionOptions& given = options.attention;
  const struct {
    Name name;
    bool is_given;
  } decided[] = {
      {Name::kCausal, given.causal.given()},
      {Name::kWindow, given.window.given() || given.window.alignment != Alignment::kNone},
      {Name::kKvLengths, !given.kv_lengths.empty()},
      {Name::kRope,
       given.rope.given() || !given.rope.q_positions.empty() || !given.rope.k_positions.empty()},
      {Name::kAttnMaskBlocked, options.attn_mask_blocked.given()},
      {Name::kKeyPaddingBlocked, options.key_padding_blocked.given()},
      {Name::kKeyPaddingBias, options.key_padding_bias.given()}};
  for (const auto& [name, is_given] : decided) {
    if (is_given) return option_error(name, Message::kNoneInStep);
  }
  return {};
}

}  // namespace

Status MultiHeadAttention::step(const ConstTensor& x, const MultiHeadAttentionOptions& options,
                                const MultiHeadAttentionOutputs& outputs,
                                MultiHeadAttentionCache& cache, Trace* trace,
                                Context& context) const {
  return engine::memory_guard([&]() -> Status {
    if (!nn::has_weights(weights_)) return option_error(Name::kModule, Message::kLoadedOrUsed);
    if (cache.layer_ != id_) {
      return option_error(Name::kCache,
                          cache.layer_ == 0 ? Message::kCacheNotCreated : Message::kCacheOfAnother);
    }
    const int64_t before = cache.length();
    if (before > 0 && cache.version_ != memory_->version) {
      return option_error(Name::kCache, Message::kCacheOfOtherWeights, before);
    }
    const KVCacheConfig& kept = cache.kv_.config();
    const int rank = x.shape.rank();
    if (rank != 2 && rank != 3) {
      return shape_error(Name::kX, Message::kRank3Or2, Axes::kStepX, {}, x.shape, rank);
    }
    const int token_axis = rank == 3 && config_.batch_first ? 1 : 0;
    const int64_t tokens = x.shape[token_axis];
    const auto tokens_of = [&](int64_t width) -> Dims {
      if (rank == 2) return {tokens, width};
      return config_.batch_first ? Dims{kept.batch, tokens, width}
                                 : Dims{tokens, kept.batch, width};
    };
    if (rank == 2 && kept.batch != 1) {
      return shape_error(Name::kX, Message::kRank3ForBatch, x.shape, kept.batch);
    }
    MULTIHEAD_TRY(validate_exact(Name::kX, Axes::kStepX, x, tokens_of(config_.embed_dim)));
    const int64_t keys = before + tokens;
    if (kept.layout != KVCacheConfig::Layout::kRing && keys > kept.capacity) {
      return option_error(Name::kX, Message::kStepRoom, kept.capacity - before, before,
                          kept.capacity, tokens);
    }
    // All new tokens are appended before any attends, so they must not overwrite the first one's
    // window.
    MULTIHEAD_TRY(
        KVCache::Internals::validate_ring(cache.kv_, Name::kX, tokens, tokens, config_.window));
    MULTIHEAD_TRY(refuse_others(options));

    nn::Tracer tracer(trace, context);
    nn::ModuleCall run{.config = config_,
                       .weights = weights_,
                       .interventions = options.heads,
                       .tracer = tracer,
                       .context = context,
                       .query = nn::sequence_of(x, config_.batch_first),
                       .self = true,
                       .absorbed_keys = static_cast<const float*>(memory_->absorbed_keys.data())};
    run.key = run.value = run.query;
    const int64_t batch = kept.batch, heads = config_.num_heads;
    const Dims scores{batch, heads, tokens, keys};
    AttentionOptions effective = nn::resolved_options(config_, weights_, options);
    effective.causal = Causal::bottom_right();
    const engine::AttentionShape shape{.batch = batch,
                                       .heads = heads,
                                       .kv_heads = config_.num_kv_heads,
                                       .queries = tokens,
                                       .keys = keys,
                                       .head_dim = nn::transformed_width(config_),
                                       .value_dim = config_.value_dim};
    const Dims per_head = rank == 2 ? Dims{heads, tokens, keys} : scores;
    const Dims mean = rank == 2 ? Dims{tokens, keys} : Dims{batch, tokens, keys};
    MULTIHEAD_TRY(nn::validate_head_interventions(options.heads, config_));
    MULTIHEAD_TRY(nn::validate_latent_options(config_, effective));
    MULTIHEAD_TRY(engine::validate_options(effective, shape));
    MULTIHEAD_TRY(
        validate_exact(Name::kOut, Axes::kStepOut, outputs.out, tokens_of(run.out_width())));
    if (outputs.weights.given())
      MULTIHEAD_TRY(validate_exact(Name::kWeights, Axes::kStepWeights, outputs.weights, per_head));
    if (outputs.mean_weights.given())
      MULTIHEAD_TRY(
          validate_exact(Name::kMeanWeights, Axes::kStepMeanWeights, outputs.mean_weights, mean));
    MULTIHEAD_TRY(nn::validate_trace(trace));
    run.out = nn::sequence_of(outputs.out, config_.batch_first);

    const bool unscaled = tracer.wants("scores");
    const bool needs_weights = outputs.weights.given() || outputs.mean_weights.given();
    const Dims attended_shape{batch, heads, tokens, kept.value_dim};
    int32_t* positions = nullptr;
    float *kept_weights = nullptr, *ignored_out = nullptr;
    MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).module(), [&](rules::Arena& take) {
      run.lay_out(take);
      take(positions, static_cast<uint64_t>(tokens));
      take(kept_weights, needs_weights ? nn::saturated_elements(scores) : 0);
      take(ignored_out, unscaled ? nn::saturated_elements(attended_shape) : 0);
    }));
    MULTIHEAD_TRY(tracer.begin(run.trace_floats(keys)));
    for (int64_t n = 0; n < tokens; ++n) positions[n] = static_cast<int32_t>(before + n);

    run.precision = effective.precision;
    {
      // A team member stores the keys of its own heads and attends with them. If it also computes
      // their columns of q, k and v, it needs no data from other members.
      engine::Team* const team = engine::team_of(context);
      const bool keeps_own = team != nullptr && trace == nullptr &&
                             KVCache::Internals::is_share(cache.kv_) &&
                             run.projects_own_heads(*team);
      const engine::KeepOwnOutputs own(keeps_own ? team : nullptr);
      MULTIHEAD_TRY(run.project_inputs());
    }
    run.trace_inputs();
    effective.rope.q_positions =
        effective.rope.k_positions = {positions, static_cast<size_t>(tokens)};
    MULTIHEAD_TRY(run.transform(effective));
    const bool absorbs = run.absorbed_keys != nullptr;
    if (absorbs) {
      MULTIHEAD_TRY(run.absorb_queries());
    }
    run.trace_heads();

    const Tensor q = run.q_heads(), v = absorbs ? Tensor() : run.v_heads();
    MULTIHEAD_TRY(cache.kv_.append(run.k_heads(), v, {}, &context));
    cache.version_ = memory_->version;
    const auto attend = [&]() -> Status {
      if (unscaled) {
        AttentionOptions raw = effective;
        raw.scale = 1.0F;
        const ScoreCapture capture{.stage = ScoreStage::kRaw, .out = tracer.add("scores", scores)};
        const Tensor ignored(ignored_out, attended_shape);
        MULTIHEAD_TRY(
            cache.kv_.attend(q, raw, {.out = ignored, .captures = {&capture, 1}}, context));
      }
      std::vector<ScoreCapture> captures;
      for (const auto& [name, stage] : {std::pair{"scaled_scores", ScoreStage::kRaw},
                                        {"masked_scores", ScoreStage::kMasked},
                                        {"weights", ScoreStage::kWeights}}) {
        if (!tracer.wants(name)) continue;
        captures.push_back({.stage = stage, .out = tracer.add(name, scores)});
      }
      AttentionOutputs attended{.out = run.attended_heads(), .captures = captures};
      if (needs_weights) attended.weights = {kept_weights, scores};
      MULTIHEAD_TRY(cache.kv_.attend(q, effective, attended, context));
      if (absorbs) {
        MULTIHEAD_TRY(run.expand_values());
      }
      if (outputs.weights.given()) {
        Tensor to = outputs.weights;
        if (rank == 2) to = {to.data, scores, {0, to.strides[0], to.strides[1], to.strides[2]}};
        engine::copy_rows(attended.weights, to, context);
      }
      if (outputs.mean_weights.given()) {
        Tensor to = outputs.mean_weights;
        if (rank == 2) to = {to.data, {1, tokens, keys}, {0, to.strides[0], to.strides[1]}};
        engine::mean_over_heads(attended.weights, to, context);
      }
      return run.finish();
    };
    // On any later error, the tokens are removed from the cache again.
    Status status = engine::memory_guard(attend);
    if (!status.ok()) {
      for (int64_t b = 0; b < batch; ++b) {
        MULTIHEAD_TRY(cache.kv_.truncate(b, before));
      }
    }
    return status;
  });
}

}  // namespace multihead
