// Transformer::forward(), step() and backward(): from tokens to logits, and from the gradient of
// the logits to the gradients of all parameters.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "cpu/elementwise/elementwise.h"
#include "cpu/elementwise/gradients.h"
#include "engine/error/error.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "engine/runtime/scratch.h"
#include "engine/runtime/team.h"
#include "multihead/linear.h"
#include "multihead/transformer.h"
#include "nn/attention/tracer.h"
#include "nn/call_memory.h"
#include "nn/kept.h"
#include "nn/parameters.h"
#include "nn/transformer/transformer_block.h"
#include "rules/arena.h"

namespace multihead {

// The arrays that a model keeps; a call is identified by {batch, length}.
struct nn::KeptTransformer : KeptArrays<Dims> {
  explicit KeptTransformer(bool recompute) : recomputes(recompute) {}

  // Reserves memory for a call of the model. Errors: kMemory.
  Status begin(const TransformerConfig& config, uint64_t version, int64_t batch, int64_t length) {
    const auto layers = static_cast<size_t>(config.num_layers);
    const size_t wanted = recomputes ? std::min<size_t>(layers, 1) : layers;
    if (wanted != sets_) {
      discard();
      sets_ = 0;
      arrays_.reset(new (std::nothrow) BlockArrays[wanted]);
      attention_.reset(new (std::nothrow) MultiHeadAttentionActivations[wanted]);
      if (arrays_ == nullptr || attention_ == nullptr) return Status::out_of_memory();
      sets_ = wanted;
    }
    const int64_t rows = batch * length, width = config.block.attention.embed_dim;
    input_floats_ = rows * width;
    return KeptArrays::begin(version, {batch, length}, [&](rules::Arena& take) {
      take(inputs_, saturated_elements({config.num_layers + 1, rows, width}));
      take(normed, config.final_norm ? saturated_elements({rows, width}) : 0);
      for (size_t set = 0; set < sets_; ++set) {
        arrays_[set].lay_out(config.block, rows, true, take);
        arrays_[set].attention = &attention_[set];
      }
    });
  }
  // (batch * length, embed_dim): input of a layer. Index num_layers: output of the last layer.
  float* input(size_t layer) const { return inputs_ + static_cast<int64_t>(layer) * input_floats_; }
  // Arrays of a layer. All layers share one set if they are recomputed.
  const BlockArrays& layer_arrays(size_t layer) const { return arrays_[recomputes ? 0 : layer]; }
  int64_t bytes() const {
    int64_t sum = KeptArrays::bytes();
    for (size_t set = 0; set < sets_; ++set) sum += attention_[set].bytes();
    return sum;
  }

  const bool recomputes;    // keeps only the input of each layer
  float* normed = nullptr;  // (batch * length, embed_dim): output of the final norm

 private:
  std::unique_ptr<BlockArrays[]> arrays_;
  std::unique_ptr<MultiHeadAttentionActivations[]> attention_;
  size_t sets_ = 0;  // number of sets of arrays
  float* inputs_ = nullptr;
  int64_t input_floats_ = 0;
};

namespace {

// Checks the arguments that forward(), step() and backward() share; `before` tokens are in a cache.
Status validate_call(const TransformerConfig& config, std::span<const int32_t> tokens,
                     int64_t batch, int64_t before, const MultiHeadAttentionOptions& options) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (batch < 1 || count % batch != 0) {
    return shape_error(Name::kTokens, Message::kTokensPerEntry, batch, count);
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return option_error(Name::kTokens, Message::kRange, 0, config.vocab_size - 1, token);
    }
  }
  const auto scales = static_cast<int64_t>(options.heads.head_scales.size());
  const int64_t heads = config.block.attention.num_heads, all = heads * config.num_layers;
  if (config.num_layers > 0 && scales != 0 && scales != heads && scales != all) {
    return shape_error(Name::kHeadScales, Message::kValuePerHeadOfLayers, heads, all, scales);
  }
  for (const float factor : options.heads.head_scales) {
    if (!std::isfinite(factor)) {
      return engine::real_error(Name::kHeadScales, Message::kFiniteNumbers, factor);
    }
  }
  const int64_t positions = before + count / batch;
  if (config.max_positions > 0 && positions > config.max_positions) {
    return option_error(Name::kTokens, Message::kMaxPositions, config.max_positions, positions);
  }
  if (options.attention.causal.given()) return option_error(Name::kCausal, Message::kCausalOfModel);
  return {};
}

// Returns the options of one layer, with its own dropout seed.
MultiHeadAttentionOptions layer_options(const TransformerConfig& config,
                                        const MultiHeadAttentionOptions& options, size_t layer,
                                        bool causal) {
  MultiHeadAttentionOptions own = options;
  if (causal) own.attention.causal = Causal::top_left();
  own.dropout_seed = options.dropout_seed + (static_cast<uint64_t>(layer) << 32U);
  const auto layers = static_cast<size_t>(config.num_layers);
  const auto heads = static_cast<size_t>(config.block.attention.num_heads);
  const std::span<const float> scales = options.heads.head_scales;
  if (layers > 1 && scales.size() == layers * heads) {
    own.heads.head_scales = scales.subspan(layer * heads, heads);
  }
  return own;
}

// Dropout of the embeddings or of their gradients (rows, width), in place.
void drop_embeddings(const TransformerConfig& config, const MultiHeadAttentionOptions& options,
                     float* x, int64_t rows, const Context& context) {
  if (!options.training || config.embedding_dropout == 0.0F) return;
  const int64_t width = config.block.attention.embed_dim;
  const cpu::DropRows call{
      .a = nullptr,
      .x = x,
      .y = x,
      .width = width,
      .dropout = {config.embedding_dropout, options.dropout_seed, nn::kEmbeddings}};
  engine::over_rows(call, rows, width, cpu::drop_rows, context);
}

void embed(const cpu::EmbedParams& params, std::span<const int32_t> tokens,
           const Context& context) {
  engine::over_rows(params, static_cast<int64_t>(tokens.size()), params.width, cpu::embed_rows,
                    context);
}

// Embeds tokens of which each team member holds some rows of the table. Sorts the tokens by member:
// each member writes its tokens' rows of `gathered`, the members exchange them, and `gathered` is
// then the table. It has room for the embeddings of all tokens, `places` for an index per token.
Status embed_in_team(cpu::EmbedParams params, std::span<const int32_t> tokens, int64_t vocab_size,
                     float* gathered, int32_t* places, Context& context) {
  const int64_t width = params.width;
  engine::Team& team = *engine::team_of(context);
  std::vector<int64_t> ends;
  int32_t place = 0;
  for (int member = 0; member < team.members(); ++member) {
    const int64_t first = team.first_output(vocab_size, member);
    const int64_t end = team.first_output(vocab_size, member + 1);
    ends.push_back(place);
    for (size_t n = 0; n < tokens.size(); ++n) {
      if (tokens[n] < first || tokens[n] >= end) continue;
      if (member == team.rank()) {
        std::copy_n(params.embeddings + (tokens[n] - first) * width, width,
                    gathered + place * width);
      }
      places[n] = place++;
    }
  }
  ends.push_back(place);
  MULTIHEAD_TRY(team.exchange_rows(gathered, width * static_cast<int64_t>(sizeof(float)),
                                   [&](int member) { return ends[static_cast<size_t>(member)]; }));
  params.tokens = places;
  params.embeddings = gathered;
  embed(params, tokens, context);
  return {};
}

}  // namespace

Status Transformer::forward(std::span<const int32_t> tokens, int64_t batch,
                            const MultiHeadAttentionOptions& options,
                            const TransformerOutputs& outputs, Context& context) const {
  return engine::memory_guard(
      [&] { return Internals::run(*this, tokens, batch, options, outputs, nullptr, context); });
}

Status Transformer::step(std::span<const int32_t> tokens, const MultiHeadAttentionOptions& options,
                         const TransformerOutputs& outputs, TransformerCache& cache,
                         Context& context) const {
  const int64_t before = cache.length();
  Status status = engine::memory_guard([&]() -> Status {
    if (cache.layers().size() != layers().size() || layers().empty()) {
      return option_error(Name::kCache, Message::kCacheOfModel,
                          static_cast<int64_t>(layers().size()),
                          static_cast<int64_t>(cache.layers().size()));
    }
    if (!config_.causal) return option_error(Name::kCausal, Message::kCausalModel);
    const int64_t batch = cache.layers().front().kv().config().batch;
    return Internals::run(*this, tokens, batch, options, outputs, &cache, context);
  });
  if (status.ok()) return status;
  // Layers before the failed layer have appended the tokens; remove them.
  for (MultiHeadAttentionCache& layer : cache.layers()) {
    if (layer.length() != before) MULTIHEAD_TRY(layer.truncate(before));
  }
  return status;
}

Status Transformer::Internals::run(const Transformer& model, std::span<const int32_t> tokens,
                                   int64_t batch, const MultiHeadAttentionOptions& options,
                                   const TransformerOutputs& outputs, TransformerCache* cache,
                                   Context& context) {
  if (model.memory_ == nullptr) return option_error(Name::kModel, Message::kLoaded);
  const TransformerConfig& config = model.config_;
  const Weights& weights = model.weights_;
  const int64_t before = cache == nullptr ? 0 : cache->length();
  MULTIHEAD_TRY(validate_call(config, tokens, batch, before, options));
  const auto blocks = model.layers();
  const auto layers = static_cast<int64_t>(blocks.size());
  if (!outputs.traces.empty() && outputs.traces.size() != blocks.size()) {
    return shape_error(Name::kTraces, Message::kTracePerLayer, layers,
                       static_cast<int64_t>(outputs.traces.size()));
  }
  // Later layers may be given other values than the first, which is computed before they check
  // them.
  for (Trace& trace : outputs.traces) MULTIHEAD_TRY(nn::validate_trace(&trace));
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t length = count / batch, width = config.block.attention.embed_dim;
  const int64_t logits_width = config.num_readouts * config.vocab_size;
  if (outputs.logits.given()) {
    MULTIHEAD_TRY(nn::validate_rows(Name::kLogits, Axes::kLogits, outputs.logits,
                                    {batch, length, logits_width}));
  }
  if (outputs.hidden.given()) {
    MULTIHEAD_TRY(nn::validate_rows(Name::kHidden, Axes::kHidden, outputs.hidden,
                                    {layers, batch, length, width}));
  }
  if (outputs.activations != nullptr && cache != nullptr) {
    return option_error(Name::kActivations, Message::kNoneInStep);
  }

  nn::KeptTransformer* kept = nullptr;
  if (outputs.activations != nullptr) {
    MULTIHEAD_TRY(nn::ActivationsAccess::make(
        *outputs.activations, kept, nn::ActivationsAccess::recomputes(*outputs.activations)));
    MULTIHEAD_TRY(kept->begin(config, model.memory_->version, batch, length));
  }
  nn::BlockArrays arrays;
  const bool shares = weights.embedding.shape[0] != config.vocab_size;
  float *one = nullptr, *gathered = nullptr;
  int32_t* places = nullptr;
  MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).transformer(), [&](rules::Arena& take) {
    if (kept == nullptr || kept->recomputes) arrays.lay_out(config.block, count, false, take);
    if (kept == nullptr) take(one, nn::saturated_elements({count, width}));
    if (!shares) return;
    take(gathered, nn::saturated_elements({count, width}));
    take(places, static_cast<uint64_t>(count));
  }));
  // Returns a layer's input. All layers share one array unless activations are kept.
  const auto input_of = [&](size_t layer) { return kept == nullptr ? one : kept->input(layer); };
  const cpu::EmbedParams embeddings{
      .tokens = tokens.data(),
      .embeddings = weights.embedding.data,
      .positions = config.max_positions == 0 ? nullptr : weights.position.data,
      .first_position = before,
      .sequence = length,
      .width = width,
      .y = input_of(0)};
  if (shares) {
    MULTIHEAD_TRY(embed_in_team(embeddings, tokens, config.vocab_size, gathered, places, context));
  } else {
    embed(embeddings, tokens, context);
  }
  drop_embeddings(config, options, input_of(0), count, context);
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const Tensor x(input_of(layer), {batch, length, width});
    const Tensor out(input_of(layer + 1), x.shape);
    const bool keeps_all = kept != nullptr && !kept->recomputes;
    // Report the layer's error on `x` as an error on `tokens`.
    MULTIHEAD_TRY(engine::renamed(
        TransformerBlock::Internals::run(
            blocks[layer], x,
            layer_options(config, options, layer, config.causal && cache == nullptr), {.out = out},
            cache == nullptr ? nullptr : &cache->layers_[layer],
            outputs.traces.empty() ? nullptr : &outputs.traces[layer],
            keeps_all ? kept->layer_arrays(layer) : arrays, context),
        Name::kX, Name::kTokens));
    if (outputs.hidden.given()) {
      const Dims one_head{1, 1, count, width};
      float* const to = outputs.hidden.data + static_cast<int64_t>(layer) * count * width;
      engine::copy_rows(ConstTensor(out.data, one_head), {to, one_head}, context);
    }
  }
  if (kept != nullptr) kept->end();
  if (!outputs.logits.given() && kept == nullptr) return {};
  const Dims flat{count, width};
  const float* const last = input_of(blocks.size());
  float* normed = input_of(blocks.size());
  if (config.final_norm && config.block.norm != Norm::kNone) {
    if (kept != nullptr) normed = kept->normed;
    MULTIHEAD_TRY(nn::normalize(config.block.norm, {last, flat}, weights.norm_weight,
                                weights.norm_bias, config.block.norm_eps, {normed, flat}, context));
  }
  if (!outputs.logits.given()) return {};
  return linear({normed, flat}, weights.output, {}, {outputs.logits.data, {count, logits_width}},
                context, options.attention.precision);
}

Status Transformer::backward(std::span<const int32_t> tokens, int64_t batch,
                             const MultiHeadAttentionOptions& options, const ConstTensor& d_logits,
                             TransformerActivations& activations, std::span<float> gradients,
                             Context& context) const {
  return engine::memory_guard([&]() -> Status {
    if (memory_ == nullptr) return option_error(Name::kModel, Message::kLoaded);
    MULTIHEAD_TRY(validate_call(config_, tokens, batch, 0, options));
    const auto count = static_cast<int64_t>(tokens.size());
    const int64_t length = count / batch, width = config_.block.attention.embed_dim;
    const int64_t logits_width = config_.num_readouts * config_.vocab_size;
    MULTIHEAD_TRY(
        nn::validate_rows(Name::kDLogits, Axes::kLogits, d_logits, {batch, length, logits_width}));
    const auto given = static_cast<int64_t>(gradients.size());
    if (given != num_parameters()) {
      return shape_error(Name::kGradients, Message::kFloatPerParameter, num_parameters(), given);
    }
    const nn::KeptTransformer* const kept = nn::ActivationsAccess::find(activations);
    if (kept == nullptr || !kept->belong_to(memory_->version, {batch, length})) {
      return option_error(Name::kActivations, Message::kActivationsOfCall);
    }

    float* d = nullptr;  // gradient of the output of the layer, then of its input
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
    MULTIHEAD_TRY(engine::linear_backward({.x = {norms ? kept->normed : last, flat},
                                           .weight = weights_.output,
                                           .d_y = {d_logits.data, {count, logits_width}},
                                           .d_x = {d, flat},
                                           .d_weight = block.of(weights_.output),
                                           .precision = options.attention.precision},
                                          context));
    if (norms) {
      MULTIHEAD_TRY(nn::normalize_back(config_.block, last, weights_.norm_weight,
                                       weights_.norm_bias, d, {d, flat}, false, block, context));
    }
    const Tensor gradient(d, {batch, length, width});
    for (size_t layer = blocks.size(); layer-- > 0;) {
      const ConstTensor x(kept->input(layer), gradient.shape);
      const MultiHeadAttentionOptions own = layer_options(config_, options, layer, config_.causal);
      if (kept->recomputes) {
        // The kept input of the next layer is this layer's output, so the recomputation overwrites
        // it with the same values.
        const Tensor out(kept->input(layer + 1), gradient.shape);
        MULTIHEAD_TRY(TransformerBlock::Internals::run(blocks[layer], x, own, {.out = out}, nullptr,
                                                       nullptr, kept->layer_arrays(layer),
                                                       context));
      }
      MULTIHEAD_TRY(TransformerBlock::Internals::back(blocks[layer], x, own,
                                                      kept->layer_arrays(layer), arrays, gradient,
                                                      gradients.data(), context));
    }
    drop_embeddings(config_, options, d, count, context);
    engine::embed_backward({.tokens = tokens.data(),
                            .d_y = d,
                            .rows = count,
                            .width = width,
                            .first_position = 0,
                            .sequence = length,
                            .d_tokens = block.of(weights_.embedding).data,
                            .d_positions = block.of(weights_.position).data},
                           context);
    return {};
  });
}

}  // namespace multihead

template class multihead::Activations<multihead::nn::KeptTransformer>;
