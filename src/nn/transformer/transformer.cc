#include "multihead/transformer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/attention/validate.h"
#include "engine/error/guard.h"
#include "engine/layers/elementwise.h"
#include "engine/layers/gradients.h"
#include "multihead/linear.h"
#include "nn/attention/attention_parameters.h"
#include "nn/call_memory.h"
#include "nn/transformer/activations.h"
#include "nn/transformer/initialize.h"
#include "nn/transformer/transformer_block.h"

namespace multihead {
namespace {

using engine::Axes;
using engine::Message;
using engine::Name;
using engine::option_error;
using engine::shape_error;
using engine::validate_exact;

// Returns an error instead of throwing, because WebAssembly builds have no exceptions.
template <class T>
Status allocate_array(int64_t count, std::unique_ptr<T[]>& array) {
  array.reset(new (std::nothrow) T[static_cast<size_t>(count)]);
  if (array != nullptr) return {};
  return Status::out_of_memory(static_cast<uint64_t>(count) * sizeof(T));
}

}  // namespace

int64_t TransformerCache::bytes() const {
  int64_t sum = 0;
  for (const MultiHeadAttentionCache& layer : layers()) sum += layer.kv().bytes();
  return sum;
}

Status TransformerCache::truncate(int64_t length) {
  // All layers hold the same number of tokens, so an error comes from the first layer, before any
  // is changed.
  for (MultiHeadAttentionCache& layer : layers()) {
    MULTIHEAD_TRY(layer.truncate(length));
  }
  return {};
}

Status Transformer::create(const TransformerConfig& config, Transformer& model) {
  return engine::memory_guard([&] { return create_or_throw(config, model); });
}

Status Transformer::create_or_throw(const TransformerConfig& config, Transformer& model) {
  const struct {
    Name name;
    int64_t value, least, most;
  } extents[] = {{Name::kNumLayers, config.num_layers, 0, 1 << 16},
                 {Name::kVocabSize, config.vocab_size, 1, 1 << 26},
                 {Name::kMaxPositions, config.max_positions, 0, 1 << 26},
                 {Name::kNumReadouts, config.num_readouts, 1, 1 << 16}};
  for (const auto& [name, value, least, most] : extents) {
    if (value >= least && value <= most) continue;
    return option_error(name, Message::kRange, least, most, value);
  }
  if (config.tied_output && config.num_readouts > 1) {
    return option_error(Name::kNumReadouts, Message::kOneReadout, config.num_readouts);
  }
  MULTIHEAD_TRY(nn::validate_probability(Name::kEmbeddingDropout, config.embedding_dropout));
  Transformer made;
  made.config_ = config;
  // Checks the config even if the model has no layers.
  TransformerBlock block;
  MULTIHEAD_TRY(TransformerBlock::create(config.block, block));
  made.config_.block = block.config();
  std::unique_ptr<TransformerBlock[]> layers;
  MULTIHEAD_TRY(allocate_array(config.num_layers, layers));
  made.layers_ = std::move(layers);
  for (TransformerBlock& layer : made.layers()) {
    // Creates each layer anew. Copies would share an identity, but caches distinguish layers by it.
    MULTIHEAD_TRY(TransformerBlock::create(config.block, layer));
  }
  model = std::move(made);
  return {};
}

Status Transformer::load_state_dict(const StateDict& dict, ParameterNames names) {
  return engine::memory_guard([&] { return Internals::load(*this, dict, names, {}); });
}

Status Transformer::initialize(const Initialization& initialization, ParameterNames names) {
  return engine::memory_guard(
      [&] { return Internals::take_parameters(*this, nullptr, initialization, names, {}); });
}

Status Transformer::Internals::take_parameters(Transformer& model, const StateDict* dict,
                                               const Initialization& initialization,
                                               ParameterNames names, const nn::Loading& loading) {
  const TransformerConfig& config = model.config_;
  MULTIHEAD_TRY(nn::validate_initialization(initialization));
  const bool gpt2 = names == ParameterNames::kGpt2;
  const int64_t width = config.block.attention.embed_dim;
  const bool moved_from = config.num_layers > 0 && model.layers_ == nullptr;
  if (width == 0 || moved_from) return option_error(Name::kModel, Message::kCreated);
  MULTIHEAD_TRY(nn::validate_names(names, config.block.attention));
  const std::string prefix = gpt2 && dict != nullptr ? nn::gpt2_prefix(*dict) : "";
  const std::string embedding = prefix + (gpt2 ? "wte.weight" : "embedding.weight");
  const std::string position = prefix + (gpt2 ? "wpe.weight" : "position.weight");
  const std::string norm = prefix + (gpt2 ? "ln_f" : "norm");
  const std::string output = gpt2 ? "lm_head.weight" : "output.weight";

  // Loads copies of the layers, so that an error leaves this model unchanged.
  const auto blocks = model.layers();
  std::unique_ptr<TransformerBlock[]> loaded;
  std::unique_ptr<MultiHeadAttentionWeights[]> attention;
  MULTIHEAD_TRY(allocate_array(config.num_layers, loaded));
  MULTIHEAD_TRY(allocate_array(config.num_layers, attention));
  Weights weights;
  nn::ParameterList list(loading.team);
  const auto add_share = [&](const std::string& name, int64_t rows, nn::ParameterRole role,
                             ConstTensor& view) {
    list.add(name, {rows, width}, role, view, nn::DictLayout::kAsInMemory, nn::Held::kShare);
  };
  add_share(embedding, config.vocab_size, nn::ParameterRole::kEmbedding, weights.embedding);
  if (config.max_positions > 0) {
    list.add(position, {config.max_positions, width}, nn::ParameterRole::kEmbedding,
             weights.position);
  }
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    loaded[layer] = blocks[layer];
    TransformerBlock::Memory::list(loaded[layer], nn::layer_name(prefix, names, layer), names,
                                   attention[layer], list);
  }
  if (config.final_norm) {
    nn::list_norm(norm, config.block, weights.norm_weight, weights.norm_bias, list);
  }
  if (!config.tied_output) {
    add_share(output, config.num_readouts * config.vocab_size, nn::ParameterRole::kOutput,
              weights.output);
  }
  const auto ignored = [&](std::string_view name) {
    return (gpt2 && nn::is_gpt2_buffer(name)) || (config.tied_output && name == output);
  };
  auto memory = std::make_shared<TransformerBlock::Memory>();
  if (dict != nullptr) {
    MULTIHEAD_TRY(memory->parameters.load(list, *dict, loading, ignored));
  } else {
    MULTIHEAD_TRY(memory->parameters.make(list));
    nn::initialize(initialization, memory->parameters);
  }
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    MULTIHEAD_TRY(MultiHeadAttention::Internals::take_weights(
        loaded[layer].attention_, attention[layer], std::make_shared<MultiHeadAttention::Memory>(),
        {.same_values = loading.same_values}));
    loaded[layer].memory_ = memory;
  }
  MULTIHEAD_TRY(loading.agree());
  if (loading.same_values && model.memory_ != nullptr) memory->version = model.memory_->version;
  if (config.tied_output) weights.output = weights.embedding;
  model.layers_ = std::move(loaded);
  model.weights_ = weights;
  model.memory_ = std::move(memory);
  return {};
}

Status Transformer::state_dict(StateDict& dict) const {
  return nn::read_state_dict(Internals::parameters(*this), dict);
}

void Transformer::parameters_changed() {
  memory_->version = nn::new_version();
  for (TransformerBlock& layer : layers()) layer.attention_.weights_changed();
}

int64_t Transformer::num_parameters() const {
  return memory_ == nullptr ? 0 : memory_->parameters.elements();
}

Status Transformer::named(std::span<const float> block, StateDict& dict) const {
  return nn::read_block(Internals::parameters(*this), block, dict);
}

Status Transformer::create_cache(const KVCacheConfig& config, TransformerCache& cache) const {
  return engine::memory_guard(
      [&] { return Internals::create_cache(*this, config, nullptr, cache); });
}

Status Transformer::Internals::create_cache(const Transformer& model, const KVCacheConfig& config,
                                            const engine::Team* team, TransformerCache& cache) {
  TransformerCache made;
  const std::span<const TransformerBlock> blocks = model.layers();
  MULTIHEAD_TRY(allocate_array(model.config_.num_layers, made.layers_));
  made.count_ = blocks.size();
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    MULTIHEAD_TRY(MultiHeadAttention::Internals::create_cache(blocks[layer].attention(), config,
                                                              team, made.layers_[layer]));
  }
  cache = std::move(made);
  return {};
}

Status Transformer::forward(std::span<const int32_t> tokens, int64_t batch,
                            const MultiHeadAttentionOptions& options,
                            const TransformerOutputs& outputs, Context& context) const {
  return engine::memory_guard(
      [&] { return run(tokens, batch, options, outputs, nullptr, context); });
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
    return run(tokens, batch, options, outputs, &cache, context);
  });
  if (status.ok()) return status;
  // Layers before the failed layer have appended the tokens; remove them.
  for (MultiHeadAttentionCache& layer : cache.layers()) {
    if (layer.length() == before) continue;
    MULTIHEAD_TRY(layer.truncate(before));
  }
  return status;
}

Status Transformer::validate_call(std::span<const int32_t> tokens, int64_t batch, int64_t before,
                                  const MultiHeadAttentionOptions& options) const {
  if (memory_ == nullptr) return option_error(Name::kModel, Message::kLoaded);
  const auto count = static_cast<int64_t>(tokens.size());
  if (batch < 1 || count % batch != 0) {
    return shape_error(Name::kTokens, Message::kTokensPerEntry, batch, count);
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      return option_error(Name::kTokens, Message::kRange, 0, config_.vocab_size - 1, token);
    }
  }
  const int64_t length = count / batch;
  if (config_.max_positions > 0 && before + length > config_.max_positions) {
    return option_error(Name::kTokens, Message::kMaxPositions, config_.max_positions,
                        before + length);
  }
  if (options.attention.causal.alignment != Alignment::kNone) {
    return option_error(Name::kCausal, Message::kCausalOfModel);
  }
  if (options.heads.skip_out_proj) {
    return option_error(Name::kSkipOutProj, Message::kFalseInTransformer);
  }
  return {};
}

MultiHeadAttentionOptions Transformer::options_of(const MultiHeadAttentionOptions& options,
                                                  size_t layer, bool causal) const {
  MultiHeadAttentionOptions of_layer = options;
  if (causal) of_layer.attention.causal = Causal::top_left();
  // Each layer has its own dropout mask.
  of_layer.dropout_seed = options.dropout_seed + (static_cast<uint64_t>(layer) << 32U);
  const auto heads = static_cast<size_t>(config_.block.attention.num_heads);
  const std::span<const float> scales = options.heads.head_scales;
  if (count() > 1 && scales.size() == count() * heads) {
    of_layer.heads.head_scales = scales.subspan(layer * heads, heads);
  }
  return of_layer;
}

Status Transformer::run(std::span<const int32_t> tokens, int64_t batch,
                        const MultiHeadAttentionOptions& options, const TransformerOutputs& outputs,
                        TransformerCache* cache, Context& context) const {
  const int64_t before = cache == nullptr ? 0 : cache->length();
  MULTIHEAD_TRY(validate_call(tokens, batch, before, options));
  const auto blocks = layers();
  if (!outputs.traces.empty() && outputs.traces.size() != blocks.size()) {
    return shape_error(Name::kTraces, Message::kTracePerLayer, static_cast<int64_t>(blocks.size()),
                       static_cast<int64_t>(outputs.traces.size()));
  }
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t length = count / batch, width = config_.block.attention.embed_dim;
  const int64_t logits_width = config_.num_readouts * config_.vocab_size;
  const struct {
    Name name;
    Axes axes;
    const Tensor& tensor;
    Dims shape;
  } given[] = {{Name::kLogits, Axes::kLogits, outputs.logits, {batch, length, logits_width}},
               {Name::kHidden,
                Axes::kHidden,
                outputs.hidden,
                {static_cast<int64_t>(blocks.size()), batch, length, width}}};
  for (const auto& [name, axes, tensor, shape] : given) {
    if (!tensor.given()) continue;
    MULTIHEAD_TRY(validate_exact(name, axes, tensor, shape));
    if (!(tensor.strides == contiguous_strides(shape))) {
      return shape_error(name, Message::kContiguous, tensor.strides);
    }
  }
  if (outputs.activations != nullptr && cache != nullptr) {
    return option_error(Name::kActivations, Message::kNoneInStep);
  }

  using Activations = TransformerActivations::Internals;
  Activations* kept = nullptr;
  if (outputs.activations != nullptr) {
    MULTIHEAD_TRY(Activations::make(*outputs.activations, kept));
    MULTIHEAD_TRY(kept->begin(config_, memory_->version, batch, length));
  }
  nn::BlockArrays arrays;
  const bool shares = weights_.embedding.shape[0] != config_.vocab_size;
  float *one = nullptr, *gathered = nullptr;
  int32_t* places = nullptr;
  MULTIHEAD_TRY(nn::reserve(engine::scratch_of(context).transformer(), [&](rules::Arena& take) {
    if (kept == nullptr || kept->recomputes()) arrays.lay_out(config_.block, count, false, take);
    if (kept == nullptr) take(one, nn::saturated_elements({count, width}));
    if (!shares) return;
    take(gathered, nn::saturated_elements({count, width}));
    take(places, static_cast<uint64_t>(count));
  }));
  // Returns a layer's input. All layers share one array unless activations are kept.
  const auto input_of = [&](size_t layer) { return kept == nullptr ? one : kept->input(layer); };
  const Dims flat{count, width};
  MULTIHEAD_TRY(embed(tokens, before, length, gathered, places, input_of(0), context));
  if (const engine::RowDropout dropout = nn::embedding_dropout(config_, options);
      dropout.probability > 0.0F) {
    engine::drop_rows(input_of(0), dropout, count, width, input_of(0), context);
  }
  for (size_t layer = 0; layer < blocks.size(); ++layer) {
    const Tensor x(input_of(layer), {batch, length, width});
    const Tensor out(input_of(layer + 1), x.shape);
    const bool keeps_all = kept != nullptr && !kept->recomputes();
    Status status = TransformerBlock::Internals::run(
        blocks[layer], x, options_of(options, layer, config_.causal && cache == nullptr),
        {.out = out}, cache == nullptr ? nullptr : &cache->layers_[layer],
        outputs.traces.empty() ? nullptr : &outputs.traces[layer],
        keeps_all ? kept->of_layer(layer) : arrays, context);
    // Report the layer's error on `x` as an error on `tokens`.
    if (!status.ok()) return engine::renamed(status, Name::kX, Name::kTokens);
    if (outputs.hidden.given()) {
      const Dims one_head{1, 1, count, width};
      float* const to = outputs.hidden.data + static_cast<int64_t>(layer) * count * width;
      engine::copy_rows(ConstTensor(out.data, one_head), {to, one_head}, context);
    }
  }
  if (kept != nullptr) kept->end();
  if (!outputs.logits.given() && kept == nullptr) return {};
  const float* const last = input_of(blocks.size());
  float* normed = input_of(blocks.size());
  if (config_.final_norm && config_.block.norm != Norm::kNone) {
    if (kept != nullptr) normed = kept->normed();
    MULTIHEAD_TRY(nn::normalize(config_.block.norm, {last, flat}, weights_.norm_weight,
                                weights_.norm_bias, config_.block.norm_eps, {normed, flat},
                                context));
  }
  if (!outputs.logits.given()) return {};
  return linear({normed, flat}, weights_.output, {}, {outputs.logits.data, {count, logits_width}},
                context, options.attention.precision);
}

}  // namespace multihead
